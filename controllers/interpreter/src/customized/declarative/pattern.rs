//! Lua 5.1 patterns (Reference Manual 5.4.1, LuaJIT's `lib_string.c`) with a step budget. LuaJIT's own matcher
//! backtracks in C, where no hook can interrupt it. Each attempted position is one step.

use super::budget::{Budget, BudgetExhausted};

/// Maximum number of captures of one pattern, LuaJIT's `LUA_MAXCAPTURES`.
const MAX_CAPTURES: usize = 32;
/// Maximum depth of nested matches, LuaJIT's `LJ_MAX_XLEVEL`.
const MAX_DEPTH: usize = 200;
const ESCAPE: u8 = b'%';
/// Number of compared bytes that count as one step.
const COMPARED_BYTES_PER_STEP: usize = 64;

/// Pattern error, with LuaJIT's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum PatternError {
    #[error("malformed pattern (ends with '%')")]
    EndsWithEscape,
    #[error("malformed pattern (missing ']')")]
    UnclosedSet,
    #[error("missing '[' after '%f' in pattern")]
    MissingFrontierSet,
    #[error("unbalanced pattern")]
    Unbalanced,
    #[error("invalid pattern capture")]
    UnopenedCapture,
    #[error("invalid capture index")]
    CaptureIndex,
    #[error("too many captures")]
    TooManyCaptures,
    #[error("unfinished capture")]
    UnclosedCapture,
    #[error("pattern too complex")]
    TooComplex,
    #[error("context deadline exceeded")]
    BudgetExhausted,
}

impl From<BudgetExhausted> for PatternError {
    fn from(BudgetExhausted: BudgetExhausted) -> Self {
        PatternError::BudgetExhausted
    }
}

type Result<T> = std::result::Result<T, PatternError>;

/// Content of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Capture {
    /// Start and end of the captured text.
    Text(usize, usize),
    /// Position of an empty capture `()`.
    Position(usize),
}

/// The first match of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) captures: Vec<Capture>,
}

/// The first match at `from` or later. With `anchors`, a leading `^` allows a match at `from` only.
pub(super) fn find(
    subject: &[u8],
    pattern: &[u8],
    from: usize,
    anchors: bool,
    budget: &Budget,
) -> Result<Option<Match>> {
    let is_anchored = anchors && pattern.first() == Some(&b'^');
    let pattern = if is_anchored { pattern.get(1..).unwrap_or_default() } else { pattern };
    for start in from..=subject.len() {
        let mut matcher = Matcher { subject, pattern, captures: Vec::new(), depth: 0, budget };
        if let Some(end) = matcher.match_from(start, 0)? {
            return Ok(Some(Match { start, end, captures: matcher.closed_captures()? }));
        }
        if is_anchored {
            break;
        }
    }
    Ok(None)
}

/// The first literal occurrence of `text` at `from` or later.
pub(super) fn find_plain(subject: &[u8], text: &[u8], from: usize, budget: &Budget) -> Result<Option<Match>> {
    let Some(first) = text.first() else {
        return Ok(Some(Match { start: from, end: from, captures: Vec::new() }));
    };
    for start in from..=subject.len().saturating_sub(text.len()) {
        budget.step()?;
        if subject.get(start) != Some(first) {
            continue;
        }
        count_compared_bytes(text.len(), budget)?;
        if subject.get(start..).is_some_and(|rest| rest.starts_with(text)) {
            return Ok(Some(Match { start, end: start + text.len(), captures: Vec::new() }));
        }
    }
    Ok(None)
}

/// True if a pattern has characters with a special meaning.
pub(super) fn has_specials(pattern: &[u8]) -> bool {
    pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte))
}

/// Accounts for the comparison of a number of bytes.
fn count_compared_bytes(bytes: usize, budget: &Budget) -> Result<()> {
    (0..bytes / COMPARED_BYTES_PER_STEP).try_for_each(|_| budget.step())?;
    Ok(())
}

#[derive(Debug, Clone, Copy)]
enum CaptureState {
    Open(usize),
    Closed(Capture),
}

struct Matcher<'a> {
    subject: &'a [u8],
    pattern: &'a [u8],
    captures: Vec<CaptureState>,
    depth: usize,
    budget: &'a Budget,
}

impl Matcher<'_> {
    /// The byte of the pattern at `index`, or zero after the end, as in C.
    fn code(&self, index: usize) -> u8 {
        self.pattern.get(index).copied().unwrap_or_default()
    }

    fn closed_captures(&self) -> Result<Vec<Capture>> {
        let closed_capture = |state: &CaptureState| match state {
            CaptureState::Closed(capture) => Ok(*capture),
            CaptureState::Open(_) => Err(PatternError::UnclosedCapture),
        };
        self.captures.iter().map(closed_capture).collect()
    }

    /// Matches the pattern from `p` at position `s`; returns the end of the match.
    fn match_from(&mut self, s: usize, p: usize) -> Result<Option<usize>> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(PatternError::TooComplex);
        }
        let end = self.match_items(s, p)?;
        self.depth -= 1;
        Ok(end)
    }

    /// Matches a sequence of items. Recurses for items that can match in several ways.
    fn match_items(&mut self, mut s: usize, mut p: usize) -> Result<Option<usize>> {
        loop {
            self.budget.step()?;
            let next = self.code(p + 1);
            match self.code(p) {
                0 => return Ok(Some(s)),
                b'(' if next == b')' => return self.open_capture(s, p + 2, CaptureState::Closed(Capture::Position(s))),
                b'(' => return self.open_capture(s, p + 1, CaptureState::Open(s)),
                b')' => return self.close_capture(s, p + 1),
                b'$' if next == 0 => return Ok((s == self.subject.len()).then_some(s)),
                ESCAPE if next == b'b' => match self.match_balanced(s, p + 2)? {
                    Some(end) => (s, p) = (end, p + 4),
                    None => return Ok(None),
                },
                ESCAPE if next == b'f' => match self.match_frontier(s, p + 2)? {
                    Some(after) => p = after,
                    None => return Ok(None),
                },
                ESCAPE if next.is_ascii_digit() => match self.match_back_reference(s, next)? {
                    Some(end) => (s, p) = (end, p + 2),
                    None => return Ok(None),
                },
                _ => {
                    let after = self.class_end(p)?;
                    let matches = self.matches_single(s, p, after)?;
                    match self.code(after) {
                        b'?' => {
                            if matches && let Some(end) = self.match_from(s + 1, after + 1)? {
                                return Ok(Some(end));
                            }
                            p = after + 1;
                        }
                        b'*' => return self.match_longest(s, p, after),
                        b'+' => return if matches { self.match_longest(s + 1, p, after) } else { Ok(None) },
                        b'-' => return self.match_shortest(s, p, after),
                        _ if matches => (s, p) = (s + 1, after),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    fn match_longest(&mut self, s: usize, p: usize, after: usize) -> Result<Option<usize>> {
        let mut count = 0;
        while self.matches_single(s + count, p, after)? {
            count += 1;
        }
        for count in (0..=count).rev() {
            if let Some(end) = self.match_from(s + count, after + 1)? {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    fn match_shortest(&mut self, mut s: usize, p: usize, after: usize) -> Result<Option<usize>> {
        loop {
            if let Some(end) = self.match_from(s, after + 1)? {
                return Ok(Some(end));
            }
            if !self.matches_single(s, p, after)? {
                return Ok(None);
            }
            s += 1;
        }
    }

    fn open_capture(&mut self, s: usize, p: usize, state: CaptureState) -> Result<Option<usize>> {
        if self.captures.len() >= MAX_CAPTURES {
            return Err(PatternError::TooManyCaptures);
        }
        self.captures.push(state);
        let end = self.match_from(s, p)?;
        if end.is_none() {
            self.captures.pop();
        }
        Ok(end)
    }

    fn close_capture(&mut self, s: usize, p: usize) -> Result<Option<usize>> {
        let last_open = self.captures.iter().enumerate().rev().find_map(|(index, state)| match state {
            CaptureState::Open(start) => Some((index, *start)),
            CaptureState::Closed(_) => None,
        });
        let Some((index, start)) = last_open else { return Err(PatternError::UnopenedCapture) };
        self.captures[index] = CaptureState::Closed(Capture::Text(start, s));
        let end = self.match_from(s, p)?;
        if end.is_none() {
            self.captures[index] = CaptureState::Open(start);
        }
        Ok(end)
    }

    /// `%1` to `%9`: matches the text of an earlier capture again.
    fn match_back_reference(&self, s: usize, digit: u8) -> Result<Option<usize>> {
        let index = usize::from(digit).checked_sub(usize::from(b'1')).ok_or(PatternError::CaptureIndex)?;
        let (start, end) = match self.captures.get(index) {
            Some(CaptureState::Closed(Capture::Text(start, end))) => (*start, *end),
            Some(CaptureState::Closed(Capture::Position(_))) => return Ok(None),
            Some(CaptureState::Open(_)) | None => return Err(PatternError::CaptureIndex),
        };
        let text = self.subject.get(start..end).unwrap_or_default();
        count_compared_bytes(text.len(), self.budget)?;
        let is_repeated = self.subject.get(s..).is_some_and(|rest| rest.starts_with(text));
        Ok(is_repeated.then_some(s + text.len()))
    }

    /// `%bxy`: matches from `x` to the balancing `y`.
    fn match_balanced(&self, s: usize, p: usize) -> Result<Option<usize>> {
        let (begin, end) = (self.code(p), self.code(p + 1));
        if begin == 0 || end == 0 {
            return Err(PatternError::Unbalanced);
        }
        if self.subject.get(s) != Some(&begin) {
            return Ok(None);
        }
        let mut depth = 1;
        for (index, byte) in self.subject.iter().enumerate().skip(s + 1) {
            self.budget.step()?;
            if *byte == end {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(index + 1));
                }
            } else if *byte == begin {
                depth += 1;
            }
        }
        Ok(None)
    }

    /// `%f[set]`: matches where a run of bytes in the set begins; returns the position in the pattern after the item.
    fn match_frontier(&self, s: usize, p: usize) -> Result<Option<usize>> {
        if self.code(p) != b'[' {
            return Err(PatternError::MissingFrontierSet);
        }
        let after = self.class_end(p)?;
        let byte = |index: Option<usize>| index.and_then(|index| self.subject.get(index)).copied().unwrap_or_default();
        let begins =
            !self.is_in_set(byte(s.checked_sub(1)), p, after - 1)? && self.is_in_set(byte(Some(s)), p, after - 1)?;
        Ok(begins.then_some(after))
    }

    /// The position in the pattern after the item at `p`.
    fn class_end(&self, mut p: usize) -> Result<usize> {
        match self.code(p) {
            ESCAPE if self.code(p + 1) == 0 => Err(PatternError::EndsWithEscape),
            ESCAPE => Ok(p + 2),
            b'[' => {
                p += if self.code(p + 1) == b'^' { 2 } else { 1 };
                loop {
                    self.budget.step()?;
                    match self.code(p) {
                        0 => return Err(PatternError::UnclosedSet),
                        ESCAPE if self.code(p + 1) != 0 => p += 2,
                        _ => p += 1,
                    }
                    if self.code(p) == b']' {
                        return Ok(p + 1);
                    }
                }
            }
            _ => Ok(p + 1),
        }
    }

    fn matches_single(&self, s: usize, p: usize, after: usize) -> Result<bool> {
        self.budget.step()?;
        let Some(byte) = self.subject.get(s).copied() else { return Ok(false) };
        match self.code(p) {
            b'.' => Ok(true),
            ESCAPE => Ok(is_in_class(byte, self.code(p + 1))),
            b'[' => self.is_in_set(byte, p, after - 1),
            literal => Ok(literal == byte),
        }
    }

    /// True if a byte is in the set that begins at `p` and ends with the bracket at `end`.
    fn is_in_set(&self, byte: u8, mut p: usize, end: usize) -> Result<bool> {
        let matches_if_listed = if self.code(p + 1) == b'^' {
            p += 1;
            false
        } else {
            true
        };
        p += 1;
        while p < end {
            self.budget.step()?;
            let code = self.code(p);
            let is_match = if code == ESCAPE {
                p += 1;
                is_in_class(byte, self.code(p))
            } else if self.code(p + 1) == b'-' && p + 2 < end {
                p += 2;
                (code..=self.code(p)).contains(&byte)
            } else {
                code == byte
            };
            if is_match {
                return Ok(matches_if_listed);
            }
            p += 1;
        }
        Ok(!matches_if_listed)
    }
}

/// Character classes such as `%a`. An upper-case letter negates the class; any other byte matches itself.
fn is_in_class(byte: u8, class: u8) -> bool {
    let is_match = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'g' => byte.is_ascii_graphic(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is_match == class.is_ascii_lowercase()
}

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;
