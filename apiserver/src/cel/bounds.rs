//! How large an expression may be. Parsing, evaluating and dropping an expression recurse, so its depth is estimated on its
//! text before any of that.

/// As cel-go.
const MAX_CODE_POINTS: usize = 100_000;
/// As cel-go.
const MAX_DEPTH: usize = 250;
/// Of as many conditions as an expression may have.
const BALANCED: usize = 16;

/// How deep it is at most; refuses what is too long or nested too deep.
pub(super) fn check(source: &str) -> Result<usize, String> {
    let size = source.chars().count();
    if size > MAX_CODE_POINTS {
        let text = format!("expression code point size exceeds limit: size: {size}, limit {MAX_CODE_POINTS}");
        return Err(format!("ERROR: <input>:-1:0: {text}"));
    }
    match depth(source) {
        depth if depth > MAX_DEPTH => {
            Err(format!("ERROR: <input>:-1:0: expression recursion limit exceeded: {MAX_DEPTH}"))
        }
        depth => Ok(depth),
    }
}

/// Of the tree at most: each operator of a chain (`a.b.c`, `1 + 2 + 3`) and each bracket is a level.
fn depth(source: &str) -> usize {
    let mut open: Vec<Level> = Vec::new();
    let mut level = Level::default();
    let mut most = 0;
    let mut rest = source.chars().peekable();
    while let Some(next) = rest.next() {
        match next {
            '"' | '\'' => skip_text(next, &mut rest),
            '/' if rest.peek() == Some(&'/') => {
                rest.by_ref().find(|c| *c == '\n');
            }
            '(' | '[' | '{' => {
                let base = level.now + 1;
                open.push(level);
                level = Level { base, now: base, most: base };
            }
            ')' | ']' | '}' => {
                let inner = level.most + 1;
                level = open.pop().unwrap_or_default();
                // What follows the bracket is built upon all that is in it.
                level.now = level.now.max(inner);
            }
            // Arguments and elements stand beside each other.
            ',' => level.now = level.base,
            '.' | '+' | '-' | '*' | '/' | '%' | '!' | '?' | ':' | '<' | '>' | '=' => level.now += 1,
            // The parser balances these.
            '&' | '|' => level.now = level.base + BALANCED,
            // The operator `in`.
            'i' if rest.peek() == Some(&'n') => level.now += 1,
            _ => {}
        }
        level.most = level.most.max(level.now);
        most = most.max(level.now);
    }
    most
}

#[derive(Debug, Clone, Copy, Default)]
struct Level {
    base: usize,
    now: usize,
    most: usize,
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
            ("1", 0),
            ("a.b.c", 2),
            ("'a.b.c' + \"\\\".....\"", 1),
            ("f(a.b, c.d)", 2),
            ("[[[1]]]", 4),
            ("a.all(x, x.b)", 3),
        ];
        for (source, at_least) in cases {
            assert!(depth(source) >= at_least, "{source}: {}", depth(source));
        }
        let sum = |terms: usize| vec!["1"; terms].join(" + ");
        assert_eq!(check(&sum(200)), Ok(199));
        assert!(check(&sum(300)).unwrap_err().contains("expression recursion limit exceeded: 250"));
        assert!(check(&"x".repeat(100_001)).unwrap_err().contains("size: 100001, limit 100000"));
        let many = format!("self in [{}]", vec!["'a.b.c'"; 1000].join(", "));
        assert!(check(&many).is_ok());
    }
}
