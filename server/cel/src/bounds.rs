//! How large an expression may be. Parsing, evaluating and dropping an expression recurse, so its depth is estimated on its
//! text before any of that.

/// As cel-go.
const MAX_CODE_POINTS: usize = 100_000;
/// Expressions within each other, as cel-go counts them: those in brackets and what follows the colon of a condition.
const MAX_NESTING: usize = 250;
/// What is estimated deeper would not fit on a stack. [`super::typing`] counts better, and sooner.
const MAX_DEPTH: usize = 2_000;

/// How deep its tree is at most; refuses what is too long or nested too deep.
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

/// How many expressions are within each other, and the depth of the tree at most.
fn measure(source: &str) -> (usize, usize) {
    let mut open: Vec<Level> = Vec::new();
    let mut level = Level::default();
    let mut nesting = 0;
    let mut before = ' ';
    let mut rest = source.chars().peekable();
    while let Some(next) = rest.next() {
        if next.is_whitespace() {
            continue;
        }
        if next == '/' && rest.peek() == Some(&'/') {
            rest.by_ref().find(|c| *c == '\n');
            continue;
        }
        let closes = matches!(next, ')' | ']' | '}');
        if !closes {
            nesting = nesting.max(level.around + level.part.conditions + 1);
        }
        match next {
            '"' | '\'' => skip_text(next, &mut rest),
            '(' | '[' | '{' => {
                // An element of what stands before is a level as a field is.
                let element =
                    next == '[' && (before.is_alphanumeric() || matches!(before, '_' | ')' | ']' | '}' | '"' | '\''));
                level.part.operators += usize::from(element);
                let around = level.around + level.part.conditions + 1;
                open.push(std::mem::replace(&mut level, Level { around, ..Level::default() }));
            }
            _ if closes => {
                let inner = level.depth() + 1;
                level = open.pop().unwrap_or_default();
                level.part.inner = level.part.inner.max(inner);
            }
            // Arguments and elements stand beside each other.
            ',' => level.next_part(),
            '&' => level.part.join(0),
            '|' => level.part.join(1),
            // Not that of optional fields and elements.
            '?' if !matches!(before, '.' | '[' | '{' | ',') => level.part.asked += 1,
            ':' if level.part.asked > level.part.conditions => level.part.conditions += 1,
            '.' | '+' | '-' | '*' | '/' | '%' | '!' | '?' | ':' | '<' | '>' | '=' => level.part.operators += 1,
            // The operator `in`.
            'i' if rest.peek() == Some(&'n') => level.part.operators += 1,
            _ => {}
        }
        before = next;
    }
    let depth = open.iter().fold(level.depth(), |inner, level| inner.max(level.depth()) + 1);
    (nesting, depth)
}

/// What is between two brackets.
#[derive(Debug, Default)]
struct Level {
    /// Expressions that it is in.
    around: usize,
    /// The deepest part that is over.
    most: usize,
    part: Part,
}

/// What is between two commas.
#[derive(Debug, Default)]
struct Part {
    asked: usize,
    conditions: usize,
    /// Signs of `&&`, and of `||`.
    joined: [usize; 2],
    /// The deepest of what was joined.
    most: usize,
    /// Of what is joined next.
    operators: usize,
    inner: usize,
}

impl Level {
    fn depth(&self) -> usize {
        self.most.max(self.part.depth())
    }

    fn next_part(&mut self) {
        self.most = self.depth();
        self.part = Part::default();
    }
}

impl Part {
    fn join(&mut self, kind: usize) {
        self.joined[kind] += 1;
        self.most = self.most.max(self.operators + self.inner);
        (self.operators, self.inner) = (0, 0);
    }

    /// A path from its root goes through its conditions, what joins them, the operators of one of them and one bracket.
    fn depth(&self) -> usize {
        // The parser balances these.
        let joins: u32 = self.joined.iter().map(|signs| usize::BITS - signs.leading_zeros()).sum();
        self.asked + joins as usize + self.most.max(self.operators + self.inner) + 1
    }
}

/// To the end of a string, which may have three quotes. In a raw one a backslash is no escape, but neither does it end it here:
/// what is wrongly taken for text ends at the next quote.
fn skip_text(quote: char, rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    while let Some(next) = rest.next() {
        match next {
            '\\' => {
                rest.next();
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
    fn depth_is_never_less_than_that_of_the_tree() {
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

    /// Where kube-apiserver draws the line.
    #[test]
    fn nesting_is_counted_as_cel_go_does() {
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
