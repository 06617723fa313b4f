//! The shell parser: the subset of POSIX sh that scripts in pod specs and `kubectl exec … sh -c` use.
//!
//! Background jobs, functions, `case` and here-documents are not supported and reported as syntax errors.

mod words;

pub use words::{ParameterOperator, Part, Word};

/// `2>file`, `<file`, `2>&1`, …
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    pub fd: u8,
    pub target: RedirectTarget,
}

/// File or file descriptor of a redirect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedirectTarget {
    Read(Word),
    Write(Word),
    Append(Word),
    Duplicate(u8),
}

/// A parsed command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Simple {
        assignments: Vec<(String, Word)>,
        words: Vec<Word>,
        redirects: Vec<Redirect>,
    },
    Pipeline {
        stages: Vec<Command>,
        negate: bool,
    },
    /// The first command, then each of the others, depending on the status so far: `&&` (true) or `||` (false).
    AndOr(Box<Command>, Vec<(bool, Command)>),
    Sequence(Vec<Command>),
    Subshell(Box<Command>, Vec<Redirect>),
    Group(Box<Command>, Vec<Redirect>),
    If {
        branches: Vec<(Command, Command)>,
        otherwise: Option<Box<Command>>,
        redirects: Vec<Redirect>,
    },
    While {
        until: bool,
        condition: Box<Command>,
        body: Box<Command>,
        redirects: Vec<Redirect>,
    },
    For {
        name: String,
        words: Option<Vec<Word>>,
        body: Box<Command>,
        redirects: Vec<Redirect>,
    },
}

impl Command {
    /// Returns the redirects of the command as a whole.
    pub fn redirects(&self) -> &[Redirect] {
        match self {
            Command::Simple { redirects, .. }
            | Command::Subshell(_, redirects)
            | Command::Group(_, redirects)
            | Command::If { redirects, .. }
            | Command::While { redirects, .. }
            | Command::For { redirects, .. } => redirects,
            Command::Pipeline { .. } | Command::AndOr(..) | Command::Sequence(_) => &[],
        }
    }
}

/// Errors of parsing a script.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    #[error("syntax error: unexpected end of file")]
    EndOfFile,
    #[error("syntax error: unterminated quoted string")]
    Unterminated,
    #[error("syntax error: unexpected {0:?}")]
    Unexpected(String),
    #[error("syntax error: {0} is not supported by this shell")]
    Unsupported(&'static str),
}

type ParseResult<T> = Result<T, SyntaxError>;

/// Parses a whole script.
pub fn parse(script: &str) -> ParseResult<Command> {
    let mut parser = Parser { text: script.chars().collect(), at: 0, depth: 0 };
    let command = parser.sequence(&[])?;
    match parser.peek() {
        None => Ok(command),
        Some(c) => Err(SyntaxError::Unexpected(c.to_string())),
    }
}

/// Maximum nesting of a script.
const MAX_DEPTH: usize = 64;
const RESERVED: &[&str] =
    &["if", "then", "elif", "else", "fi", "while", "until", "for", "do", "done", "case", "{", "}", "!"];

struct Parser {
    text: Vec<char>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn peek_at(&self, ahead: usize) -> Option<char> {
        self.text.get(self.at + ahead).copied()
    }

    fn starts_with(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(i, c)| self.peek_at(i) == Some(c))
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.starts_with(text);
        if found {
            self.at += text.chars().count();
        }
        found
    }

    fn skip_blanks(&mut self) {
        loop {
            if self.eat("\\\n") || self.eat(" ") || self.eat("\t") || self.eat("\r") {
                continue;
            }
            if self.peek() == Some('#') {
                while self.peek().is_some_and(|c| c != '\n') {
                    self.at += 1;
                }
            }
            return;
        }
    }

    fn skip_separators(&mut self) {
        self.skip_blanks();
        while self.eat("\n") || self.eat(";") {
            self.skip_blanks();
        }
    }

    /// Returns the reserved word at the current position, if it is a complete word.
    fn reserved(&self) -> Option<&'static str> {
        RESERVED.iter().copied().find(|word| {
            self.starts_with(word)
                && self.peek_at(word.len()).is_none_or(|c| c.is_whitespace() || ";|&()<>".contains(c))
        })
    }

    fn expect_reserved(&mut self, word: &str) -> ParseResult<()> {
        self.skip_separators();
        if self.reserved() == Some(word) && self.eat(word) {
            return Ok(());
        }
        Err(self.unexpected())
    }

    fn unexpected(&self) -> SyntaxError {
        let rest: String = self.text[self.at..].iter().take_while(|c| !c.is_whitespace()).collect();
        match self.peek() {
            None => SyntaxError::EndOfFile,
            Some('\n') => SyntaxError::Unexpected("newline".into()),
            Some(c) if rest.is_empty() => SyntaxError::Unexpected(c.to_string()),
            Some(_) => SyntaxError::Unexpected(rest),
        }
    }

    /// Parses commands up to one of the reserved words `ends`, a closing parenthesis or the end of the text.
    fn sequence(&mut self, ends: &[&str]) -> ParseResult<Command> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(SyntaxError::Unsupported("this nesting depth"));
        }
        let mut commands = Vec::new();
        loop {
            self.skip_separators();
            let ended = self.reserved().is_some_and(|word| ends.contains(&word));
            if ended || matches!(self.peek(), None | Some(')')) {
                break;
            }
            commands.push(self.and_or()?);
            self.skip_blanks();
            match self.peek() {
                None | Some(';' | '\n' | ')') => {}
                Some('&') => return Err(SyntaxError::Unsupported("a background job")),
                Some(_) => return Err(self.unexpected()),
            }
        }
        self.depth -= 1;
        Ok(if commands.len() == 1 { commands.remove(0) } else { Command::Sequence(commands) })
    }

    fn and_or(&mut self) -> ParseResult<Command> {
        let first = self.pipeline()?;
        let mut rest = Vec::new();
        loop {
            self.skip_blanks();
            let and = self.eat("&&");
            if !and && !self.eat("||") {
                break;
            }
            self.skip_separators();
            rest.push((and, self.pipeline()?));
        }
        Ok(if rest.is_empty() { first } else { Command::AndOr(Box::new(first), rest) })
    }

    fn pipeline(&mut self) -> ParseResult<Command> {
        self.skip_blanks();
        let negate = self.reserved() == Some("!") && self.eat("!");
        let mut stages = vec![self.command()?];
        loop {
            self.skip_blanks();
            if self.starts_with("||") || !self.eat("|") {
                break;
            }
            self.skip_separators();
            stages.push(self.command()?);
        }
        Ok(if stages.len() == 1 && !negate { stages.remove(0) } else { Command::Pipeline { stages, negate } })
    }

    fn command(&mut self) -> ParseResult<Command> {
        self.skip_blanks();
        if self.eat("(") {
            let body = Box::new(self.sequence(&[])?);
            if !self.eat(")") {
                return Err(self.unexpected());
            }
            return Ok(Command::Subshell(body, self.redirects()?));
        }
        match self.reserved() {
            None => self.simple(),
            Some("{") => {
                self.eat("{");
                let body = Box::new(self.sequence(&["}"])?);
                self.expect_reserved("}")?;
                Ok(Command::Group(body, self.redirects()?))
            }
            Some("if") => self.conditional(),
            Some(word @ ("while" | "until")) => {
                self.eat(word);
                let condition = Box::new(self.sequence(&["do"])?);
                let body = self.body()?;
                Ok(Command::While { until: word == "until", condition, body, redirects: self.redirects()? })
            }
            Some("for") => self.iteration(),
            Some("case") => Err(SyntaxError::Unsupported("case")),
            Some(_) => Err(self.unexpected()),
        }
    }

    fn body(&mut self) -> ParseResult<Box<Command>> {
        self.expect_reserved("do")?;
        let body = Box::new(self.sequence(&["done"])?);
        self.expect_reserved("done")?;
        Ok(body)
    }

    fn conditional(&mut self) -> ParseResult<Command> {
        let (mut branches, mut otherwise) = (Vec::new(), None);
        let mut word = "if";
        while word != "fi" {
            self.expect_reserved(word)?;
            if word == "else" {
                otherwise = Some(Box::new(self.sequence(&["fi"])?));
            } else {
                let condition = self.sequence(&["then"])?;
                self.expect_reserved("then")?;
                branches.push((condition, self.sequence(&["elif", "else", "fi"])?));
            }
            word = match self.reserved() {
                Some(next @ ("elif" | "else")) if otherwise.is_none() => next,
                _ => "fi",
            };
        }
        self.expect_reserved("fi")?;
        Ok(Command::If { branches, otherwise, redirects: self.redirects()? })
    }

    fn iteration(&mut self) -> ParseResult<Command> {
        self.eat("for");
        self.skip_blanks();
        let name = self.name();
        self.skip_separators();
        let words = match self.starts_with("in") && self.eat("in") {
            true => Some(self.separated_by_blanks(Self::word)?),
            false => None,
        };
        let body = self.body()?;
        Ok(Command::For { name, words, body, redirects: self.redirects()? })
    }

    fn redirects(&mut self) -> ParseResult<Vec<Redirect>> {
        Ok(self.separated_by_blanks(Self::redirect)?.into_iter().flatten().collect())
    }

    /// Parses items until there is none, with optional blanks before each.
    fn separated_by_blanks<T>(&mut self, parse: fn(&mut Self) -> ParseResult<Option<T>>) -> ParseResult<Vec<T>> {
        let mut items = Vec::new();
        self.skip_blanks();
        while let Some(item) = parse(self)? {
            items.push(item);
            self.skip_blanks();
        }
        Ok(items)
    }

    /// Parses one redirect; `&>file` yields two.
    fn redirect(&mut self) -> ParseResult<Option<Vec<Redirect>>> {
        let both = self.eat("&>");
        let start = self.at;
        let fd = match self.peek() {
            Some(digit @ '0'..='9') if matches!(self.peek_at(1), Some('<' | '>')) => {
                self.at += 1;
                Some(digit as u8 - b'0')
            }
            _ => None,
        };
        if self.starts_with("<<") {
            return Err(SyntaxError::Unsupported("a here-document"));
        }
        let kind = [">>", ">&", ">|", ">", "<&", "<"].into_iter().find(|kind| !both && self.eat(kind));
        let kind = match (both, kind) {
            (true, _) => ">",
            (false, Some(kind)) => kind,
            (false, None) => {
                self.at = start;
                return Ok(None);
            }
        };
        self.skip_blanks();
        let word = self.word()?.ok_or_else(|| self.unexpected())?;
        let target = match kind {
            "<" => RedirectTarget::Read(word),
            ">>" => RedirectTarget::Append(word),
            ">&" | "<&" => match word.0.as_slice() {
                [Part::Text { text, .. }] if text.len() == 1 && text.as_bytes()[0].is_ascii_digit() => {
                    RedirectTarget::Duplicate(text.as_bytes()[0] - b'0')
                }
                _ => return Err(SyntaxError::Unexpected(kind.into())),
            },
            _ => RedirectTarget::Write(word),
        };
        let fd = fd.unwrap_or(u8::from(!kind.starts_with('<')));
        let mut redirects = vec![Redirect { fd, target }];
        if both {
            redirects.push(Redirect { fd: 2, target: RedirectTarget::Duplicate(1) });
        }
        Ok(Some(redirects))
    }

    fn simple(&mut self) -> ParseResult<Command> {
        let (mut assignments, mut words, mut redirects) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            self.skip_blanks();
            if let Some(more) = self.redirect()? {
                redirects.extend(more);
                continue;
            }
            if words.is_empty()
                && let Some(assignment) = self.assignment()?
            {
                assignments.push(assignment);
                continue;
            }
            match self.word()? {
                Some(word) => words.push(word),
                None => break,
            }
        }
        if assignments.is_empty() && words.is_empty() && redirects.is_empty() {
            return Err(self.unexpected());
        }
        Ok(Command::Simple { assignments, words, redirects })
    }

    fn assignment(&mut self) -> ParseResult<Option<(String, Word)>> {
        let start = self.at;
        let name = self.name();
        if name.is_empty() || !self.eat("=") {
            self.at = start;
            return Ok(None);
        }
        Ok(Some((name, self.word()?.unwrap_or_default())))
    }

    fn name(&mut self) -> String {
        let start = self.at;
        while let Some(c) = self.peek() {
            if c == '_' || c.is_ascii_alphabetic() || (self.at > start && c.is_ascii_digit()) {
                self.at += 1;
            } else {
                break;
            }
        }
        self.text[start..self.at].iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("echo 'a")]
    #[case("echo \"a")]
    #[case("echo $(a")]
    #[case("if true; then echo")]
    #[case("a | ")]
    #[case("| a")]
    #[case("done")]
    #[case("sleep 1 &")]
    #[case("cat <<EOF")]
    #[case("a )")]
    fn invalid_scripts_are_rejected(#[case] script: &str) {
        assert!(parse(script).is_err(), "{script}");
    }

    proptest::proptest! {
        #[test]
        fn parsing_never_panics(script in r#"[a-z$(){}|&;<>"'`\\ \n#!0-9=:-]{0,60}"#) {
            drop(parse(&script));
        }
    }
}
