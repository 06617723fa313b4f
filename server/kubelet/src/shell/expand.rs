//! Word expansion: variables, substitutions, field splitting, and pathname patterns.

use std::collections::BTreeMap;

use futures::future::BoxFuture;

use super::parse::{ParameterOperator, Part, Word};
use super::{Flow, Shell, Stdio};
use crate::filesystem::{FileSystem, resolve};

/// A field under construction: its text, and a pattern in which quoted characters are escaped.
#[derive(Default)]
struct Field {
    text: String,
    pattern: String,
    /// True once a part was added, even an empty quoted one.
    is_set: bool,
}

impl Shell {
    /// Expands words to arguments.
    pub(super) async fn expand_words(&mut self, words: &[Word], io: &Stdio) -> Result<Vec<String>, Flow> {
        let mut arguments = Vec::new();
        for word in words {
            for field in self.expand_fields(word, io).await? {
                let matches = if field.pattern.contains(['*', '?', '[']) {
                    glob(&self.fs, &self.cwd, &field.pattern)
                } else {
                    Vec::new()
                };
                if matches.is_empty() { arguments.push(field.text) } else { arguments.extend(matches) }
            }
        }
        Ok(arguments)
    }

    /// Expands a word to one string without field splitting, for assignments, redirects and arithmetic.
    pub(super) fn expand_word<'a>(&'a mut self, word: &'a Word, io: &'a Stdio) -> BoxFuture<'a, Result<String, Flow>> {
        Box::pin(async move {
            let mut text = String::new();
            for part in &word.0 {
                text.push_str(&self.expand_part(part, io).await?.0);
            }
            Ok(text)
        })
    }

    /// Expands a word to fields.
    async fn expand_fields(&mut self, word: &Word, io: &Stdio) -> Result<Vec<Field>, Flow> {
        let mut fields = Vec::new();
        let mut field = Field::default();
        for part in &word.0 {
            if let Part::Variable { name, operation: None, quoted: true } = part
                && name == "@"
            {
                // `"$@"` expands to one field per parameter.
                for (index, parameter) in self.parameters.clone().into_iter().enumerate() {
                    if index > 0 {
                        fields.push(std::mem::take(&mut field));
                    }
                    field.push(&parameter, true);
                }
                continue;
            }
            let (text, quoted) = self.expand_part(part, io).await?;
            if quoted || matches!(part, Part::Text { .. }) {
                field.push(&text, quoted);
                continue;
            }
            if text.starts_with(char::is_whitespace) && field.is_set {
                fields.push(std::mem::take(&mut field));
            }
            for (index, field_text) in text.split_whitespace().enumerate() {
                if index > 0 {
                    fields.push(std::mem::take(&mut field));
                }
                field.push(field_text, false);
            }
            if text.ends_with(char::is_whitespace) && field.is_set {
                fields.push(std::mem::take(&mut field));
            }
        }
        if field.is_set {
            fields.push(field);
        }
        Ok(fields)
    }

    /// Expands a part to its text. The flag is true if the text must not be split.
    async fn expand_part(&mut self, part: &Part, io: &Stdio) -> Result<(String, bool), Flow> {
        match part {
            Part::Text { text, quoted } => Ok((text.clone(), *quoted)),
            Part::Length(name) => Ok((self.variable(name).unwrap_or_default().chars().count().to_string(), true)),
            Part::Variable { name, operation: None, quoted } => Ok((self.variable(name).unwrap_or_default(), *quoted)),
            Part::Variable { name, operation: Some((operator, word)), quoted } => {
                Ok((self.expand_operator(name, *operator, word, io).await?, *quoted))
            }
            Part::Command { script, quoted } => Ok((self.substitute(script, io).await?, *quoted)),
            Part::Arithmetic(word) => {
                let text = self.expand_word(word, io).await?;
                match arithmetic(&text, &self.env) {
                    Some(value) => Ok((value.to_string(), true)),
                    None => {
                        io.error(&format!("{}: arithmetic expression: {text:?}", self.name)).await;
                        Err(Flow::Exit(2))
                    }
                }
            }
        }
    }

    /// Expands `${NAME<op>word}`.
    async fn expand_operator(
        &mut self,
        name: &str,
        operator: ParameterOperator,
        word: &Word,
        io: &Stdio,
    ) -> Result<String, Flow> {
        let value = self.variable(name).filter(|v| !v.is_empty());
        Ok(match (operator, value) {
            (ParameterOperator::Default | ParameterOperator::Assign, Some(value)) => value,
            (ParameterOperator::Default, None) | (ParameterOperator::Alternative, Some(_)) => {
                self.expand_word(word, io).await?
            }
            (ParameterOperator::Assign, None) => {
                let value = self.expand_word(word, io).await?;
                self.env.insert(name.to_owned(), value.clone());
                value
            }
            (ParameterOperator::Alternative, None) => String::new(),
            (ParameterOperator::Suffix | ParameterOperator::Prefix, value) => {
                let (value, pattern) = (value.unwrap_or_default(), self.expand_word(word, io).await?);
                let mut cuts = value.char_indices().map(|(at, _)| at).chain([value.len()]);
                if operator == ParameterOperator::Prefix {
                    cuts.find(|at| matches(&pattern, &value[..*at])).map_or(value.clone(), |at| value[at..].to_owned())
                } else {
                    let cut = cuts.rfind(|at| matches(&pattern, &value[*at..]));
                    cut.map_or(value.clone(), |at| value[..at].to_owned())
                }
            }
        })
    }

    fn variable(&self, name: &str) -> Option<String> {
        match name {
            "?" => Some(self.status.to_string()),
            // The process ID is simulated.
            "$" => Some("7".to_owned()),
            "#" => Some(self.parameters.len().to_string()),
            "@" | "*" => Some(self.parameters.join(" ")),
            "0" => Some(self.name.clone()),
            "PWD" => Some(self.cwd.clone()),
            "RANDOM" => Some(self.random().to_string()),
            name => match name.parse::<usize>() {
                Ok(index) => self.parameters.get(index - 1).cloned(),
                Err(_) => self.env.get(name).cloned(),
            },
        }
    }
}

impl Field {
    fn push(&mut self, text: &str, quoted: bool) {
        self.is_set = true;
        self.text.push_str(text);
        for c in text.chars() {
            if quoted && "*?[\\".contains(c) {
                self.pattern.push('\\');
            }
            self.pattern.push(c);
        }
    }
}

/// Matches a shell pattern: `*`, `?`, `[a-z]`, `[!…]`, backslash.
pub fn matches(pattern: &str, text: &str) -> bool {
    fn matches_from(p: &[char], t: &[char]) -> bool {
        match p {
            [] => t.is_empty(),
            ['*', rest @ ..] => (0..=t.len()).any(|skip| matches_from(rest, &t[skip..])),
            ['?', rest @ ..] => !t.is_empty() && matches_from(rest, &t[1..]),
            ['\\', c, rest @ ..] => t.first() == Some(c) && matches_from(rest, &t[1..]),
            ['[', rest @ ..] => {
                let Some(end) = rest.iter().skip(1).position(|c| *c == ']').map(|at| at + 1) else {
                    return t.first() == Some(&'[') && matches_from(rest, &t[1..]);
                };
                let (negated, set) = match &rest[..end] {
                    ['!' | '^', set @ ..] => (true, set),
                    set => (false, set),
                };
                let Some(c) = t.first() else { return false };
                let mut found = set.contains(c);
                for range in set.windows(3).filter(|w| w[1] == '-') {
                    found |= range[0] <= *c && *c <= range[2];
                }
                found != negated && matches_from(&rest[end + 1..], &t[1..])
            }
            [c, rest @ ..] => t.first() == Some(c) && matches_from(rest, &t[1..]),
        }
    }
    // Matching time is exponential in the number of stars, so patterns with more than four never match.
    let (p, t): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    p.iter().filter(|c| **c == '*').count() <= 4 && matches_from(&p, &t)
}

/// Returns the existing paths that match a pattern, sorted. They are absolute or relative like the pattern.
fn glob(fs: &FileSystem, cwd: &str, pattern: &str) -> Vec<String> {
    let absolute = pattern.starts_with('/');
    let mut found = vec![if absolute { "/".to_owned() } else { String::new() }];
    for part in pattern.split('/').filter(|p| !p.is_empty()) {
        let mut next = Vec::new();
        for base in &found {
            let directory = if base.is_empty() { cwd.to_owned() } else { resolve(cwd, base) };
            let join = |name: &str| {
                if base.is_empty() || base.ends_with('/') { format!("{base}{name}") } else { format!("{base}/{name}") }
            };
            for (name, _) in fs.list(&directory).unwrap_or_default() {
                if matches(part, &name) && (!name.starts_with('.') || part.starts_with('.')) {
                    next.push(join(&name));
                }
            }
        }
        found = next;
    }
    found
}

/// Evaluates integer arithmetic as in `$((…))`: `+ - * / %`, comparisons, parentheses, variables. Returns `None` for
/// invalid expressions.
pub(super) fn arithmetic(text: &str, env: &BTreeMap<String, String>) -> Option<i64> {
    struct Reader<'a> {
        rest: &'a str,
        env: &'a BTreeMap<String, String>,
        depth: usize,
    }
    impl Reader<'_> {
        fn eat(&mut self, token: &str) -> bool {
            self.rest = self.rest.trim_start();
            match self.rest.strip_prefix(token) {
                Some(rest) => {
                    self.rest = rest;
                    true
                }
                None => false,
            }
        }

        fn binary_expression(&mut self, precedence: usize) -> Option<i64> {
            const OPERATORS_BY_PRECEDENCE: &[&[&str]] =
                &[&["==", "!=", "<=", ">=", "<", ">"], &["+", "-"], &["*", "/", "%"]];
            let Some(operators) = OPERATORS_BY_PRECEDENCE.get(precedence) else { return self.unary() };
            let mut left = self.binary_expression(precedence + 1)?;
            while let Some(operator) = operators.iter().find(|o| self.eat(o)) {
                let right = self.binary_expression(precedence + 1)?;
                left = match *operator {
                    "+" => left.wrapping_add(right),
                    "-" => left.wrapping_sub(right),
                    "*" => left.wrapping_mul(right),
                    "/" => left.checked_div(right)?,
                    "%" => left.checked_rem(right)?,
                    "==" => i64::from(left == right),
                    "!=" => i64::from(left != right),
                    "<=" => i64::from(left <= right),
                    ">=" => i64::from(left >= right),
                    "<" => i64::from(left < right),
                    _ => i64::from(left > right),
                };
            }
            Some(left)
        }

        fn unary(&mut self) -> Option<i64> {
            self.depth += 1;
            if self.depth > 64 {
                return None;
            }
            if self.eat("-") {
                return self.unary()?.checked_neg();
            }
            if self.eat("(") {
                let value = self.binary_expression(0)?;
                return self.eat(")").then_some(value);
            }
            self.depth -= 1;
            self.rest = self.rest.trim_start();
            let length = self.rest.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(self.rest.len());
            let (word, rest) = self.rest.split_at(length);
            self.rest = rest;
            match word.parse() {
                Ok(number) => Some(number),
                Err(_) if word.is_empty() || word.starts_with(|c: char| c.is_ascii_digit()) => None,
                Err(_) => self.env.get(word).map_or(Some(0), |value| value.trim().parse().ok()),
            }
        }
    }
    let mut reader = Reader { rest: text, env, depth: 0 };
    let value = reader.binary_expression(0)?;
    reader.rest.trim().is_empty().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("*.txt", "a.txt", true)]
    #[case("a?c", "abc", true)]
    #[case("[a-c]x", "bx", true)]
    #[case("[!a-c]x", "bx", false)]
    #[case("\\*", "*", true)]
    #[case("\\*", "a", false)]
    #[case("*", "", true)]
    fn patterns_match_whole_texts(#[case] pattern: &str, #[case] text: &str, #[case] expected: bool) {
        assert_eq!(matches(pattern, text), expected);
    }

    #[rstest::rstest]
    #[case("1 + 2 * 3", Some(7))]
    #[case("(1+2)*3 % 4", Some(1))]
    #[case("i+1", Some(6))]
    #[case("unset + 1", Some(1))]
    #[case("1 < 2", Some(1))]
    #[case("1/0", None)]
    #[case("1 +", None)]
    #[case("", None)]
    fn arithmetic_expressions_are_evaluated_or_rejected(#[case] text: &str, #[case] expected: Option<i64>) {
        let env = BTreeMap::from([("i".to_owned(), "5".to_owned())]);
        assert_eq!(arithmetic(text, &env), expected);
    }
}
