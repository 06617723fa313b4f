//! Size limits of expressions. Parsing, evaluation and dropping are recursive, so the depth is estimated from the
//! text first.

/// Limit of cel-go.
const MAX_CODE_POINTS: usize = 100_000;
/// Limit of nested expressions as cel-go counts them: brackets, and the branches of conditions.
const MAX_NESTING: usize = 250;
/// Limit of the estimated depth, above which the stack might overflow. [`super::typing`] has a more precise and
/// lower limit.
const MAX_DEPTH: usize = 2_000;

/// Upper bound of the tree's depth; an error if the expression is too long or too deeply nested.
pub(super) fn check(source: &str) -> Result<usize, String> {
    let size = source.chars().count();
    if size > MAX_CODE_POINTS {
        let text = format!("expression code point size exceeds limit: size: {size}, limit {MAX_CODE_POINTS}");
        return Err(format!("ERROR: <input>:-1:0: {text}"));
    }
    let (nesting, depth) = measure(source);
    if nesting > MAX_NESTING || depth > MAX_DEPTH {
        return Err(format!("ERROR: <input>:-1:0: expression recursion limit exceeded: {MAX_NESTING}"));
    }
    Ok(depth)
}

/// Number of nested expressions, and upper bound of the tree's depth.
fn measure(source: &str) -> (usize, usize) {
    let mut open: Vec<Level> = Vec::new();
    let mut level = Level::default();
    let mut nesting = 0;
    let mut previous = ' ';
    let mut chars = source.chars().peekable();
    while let Some(next) = chars.next() {
        if next.is_whitespace() {
            continue;
        }
        if next == '/' && chars.peek() == Some(&'/') {
            chars.by_ref().find(|c| *c == '\n');
            continue;
        }
        let is_closing = matches!(next, ')' | ']' | '}');
        if !is_closing {
            nesting = nesting.max(level.enclosing + level.part.conditions + 1);
        }
        match next {
            '"' | '\'' => skip_text(next, &mut chars),
            '(' | '[' | '{' => {
                // An index adds a level, as a field does.
                let is_index = next == '['
                    && (previous.is_alphanumeric() || matches!(previous, '_' | ')' | ']' | '}' | '"' | '\''));
                level.part.operators += usize::from(is_index);
                let enclosing = level.enclosing + level.part.conditions + 1;
                open.push(std::mem::replace(&mut level, Level { enclosing, ..Level::default() }));
            }
            _ if is_closing => {
                let inner = level.depth() + 1;
                level = open.pop().unwrap_or_default();
                level.part.inner = level.part.inner.max(inner);
            }
            // Arguments and elements are siblings.
            ',' => level.next_part(),
            '&' => level.part.join(0),
            '|' => level.part.join(1),
            // A question mark after these characters marks an optional field or element.
            '?' if !matches!(previous, '.' | '[' | '{' | ',') => level.part.question_marks += 1,
            ':' if level.part.question_marks > level.part.conditions => level.part.conditions += 1,
            '.' | '+' | '-' | '*' | '/' | '%' | '!' | '?' | ':' | '<' | '>' | '=' => level.part.operators += 1,
            // The operator `in`.
            'i' if chars.peek() == Some(&'n') => level.part.operators += 1,
            _ => {}
        }
        previous = next;
    }
    let depth = open.iter().fold(level.depth(), |inner, level| inner.max(level.depth()) + 1);
    (nesting, depth)
}

/// State inside a pair of brackets.
#[derive(Debug, Default)]
struct Level {
    /// Number of enclosing expressions.
    enclosing: usize,
    /// Depth of the deepest completed part.
    max_depth: usize,
    part: Part,
}

/// State between two commas.
#[derive(Debug, Default)]
struct Part {
    question_marks: usize,
    conditions: usize,
    /// Number of `&&` and of `||`.
    join_counts: [usize; 2],
    /// Depth of the deepest completed operand.
    max_depth: usize,
    /// Operators of the current operand.
    operators: usize,
    inner: usize,
}

impl Level {
    fn depth(&self) -> usize {
        self.max_depth.max(self.part.depth())
    }

    fn next_part(&mut self) {
        self.max_depth = self.depth();
        self.part = Part::default();
    }
}

impl Part {
    fn join(&mut self, kind: usize) {
        self.join_counts[kind] += 1;
        self.max_depth = self.max_depth.max(self.operators + self.inner);
        (self.operators, self.inner) = (0, 0);
    }

    /// The longest path contains the conditions, their joins, the operators of one operand, and one bracket.
    fn depth(&self) -> usize {
        // The parser balances chains of joins.
        let joins: u32 = self.join_counts.iter().map(|signs| usize::BITS - signs.leading_zeros()).sum();
        self.question_marks + joins as usize + self.max_depth.max(self.operators + self.inner) + 1
    }
}

/// Skips a string literal, which may be triple-quoted. Backslashes in raw strings are treated as escapes: text that
/// is wrongly included ends at the next quote.
fn skip_text(quote: char, chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    while let Some(next) = chars.next() {
        match next {
            '\\' => {
                chars.next();
            }
            next if next == quote => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimated_depth_is_an_upper_bound() {
        let cases = [
            ("1", 1),
            ("a.b.c", 3),
            ("'a.b.c' + \"\\\".....\"", 2),
            ("f(a.b, c.d)", 3),
            ("[[[1]]]", 4),
            ("a.all(x, x.b)", 4),
            ("a[0][1]['x']", 4),
            ("((1)", 3),
            ("a && b ? c : d || e ? f : g", 4),
        ];
        for (source, at_least) in cases {
            let depth = measure(source).1;
            assert!(depth >= at_least, "{source}: {depth}");
        }
        let sum = |terms: usize| vec!["1"; terms].join(" + ");
        assert_eq!(check(&sum(700)), Ok(700));
        assert!(check(&sum(2_001)).unwrap_err().contains("expression recursion limit exceeded: 250"));
        assert!(check(&"x".repeat(100_001)).unwrap_err().contains("size: 100001, limit 100000"));
        let many = format!("self in [{}]", vec!["'a.b.c'"; 1000].join(", "));
        assert!(check(&many).is_ok());
    }

    /// The limits of kube-apiserver.
    #[test]
    fn nesting_limits_match_cel_go() {
        let nested = |open: &str, inner: &str, close: &str, n: usize| open.repeat(n) + inner + &close.repeat(n);
        for (open, inner, close, most) in [
            ("(", "true", ")", 249),
            ("[", "", "]", 250),
            ("size(", "'a'", ")", 249),
            ("!(true && ", "true", ")", 249),
            ("true ? true : ", "true", "", 249),
            ("{'a': ", "1", "}", 249),
        ] {
            assert!(check(&nested(open, inner, close, most)).is_ok(), "{open}");
            assert!(check(&nested(open, inner, close, most + 1)).is_err(), "{open}");
        }
        for chain in [
            "x".to_owned() + &".a".repeat(700),
            "x".to_owned() + &"[?0]".repeat(700),
            "'a'".to_owned() + &".trim()".repeat(700),
        ] {
            assert!(check(&chain).is_ok());
        }
    }
}
