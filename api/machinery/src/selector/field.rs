//! Field selectors in their string form: `metadata.name=web,status.phase!=Running`. Backslashes escape commas, equals
//! signs and backslashes in values.

use std::fmt;

use crate::selector::SelectorError;

/// A requirement on a field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldRequirement {
    pub field: String,
    /// True if the field must have the value; otherwise it must not.
    pub is_equal: bool,
    pub value: String,
}

/// Requirements on fields, all of which must be satisfied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

impl FieldSelector {
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        let mut terms = split_terms(text);
        // API servers report the first error in this order.
        terms.sort_unstable();
        for term in terms.into_iter().filter(|term| !term.is_empty()) {
            let not_understood = || SelectorError::Field { selector: text.to_owned(), term: term.to_owned() };
            let (field, operator, value) = split_term(term).ok_or_else(not_understood)?;
            let value = unescape(value)?;
            requirements.push(FieldRequirement { field: field.to_owned(), is_equal: operator != "!=", value });
        }
        Ok(Self { requirements })
    }

    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    /// True if there are no requirements, so that every object matches.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Matches fields by path. A missing field is empty.
    pub fn matches_with<'v>(&self, lookup: impl Fn(&str) -> Option<std::borrow::Cow<'v, str>>) -> bool {
        self.requirements.iter().all(|requirement| {
            (lookup(&requirement.field).unwrap_or_default() == requirement.value) == requirement.is_equal
        })
    }

    /// The value that a field must have, if there is exactly one.
    pub fn required_value(&self, field: &str) -> Option<&str> {
        let requirement =
            self.requirements.iter().find(|requirement| requirement.field == field && requirement.is_equal)?;
        Some(&requirement.value)
    }
}

fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                terms.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn split_term(term: &str) -> Option<(&str, &str, &str)> {
    (0..term.len()).filter(|index| term.is_char_boundary(*index)).find_map(|index| {
        let operator = ["!=", "==", "="].into_iter().find(|operator| term[index..].starts_with(operator))?;
        Some((&term[..index], operator, &term[index + operator.len()..]))
    })
}

fn unescape(value: &str) -> Result<String, SelectorError> {
    let mut plain = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(escaped @ ('\\' | ',' | '=')) => plain.push(escaped),
                other => return Err(SelectorError::Escape(std::iter::once(character).chain(other).collect())),
            },
            ',' | '=' => return Err(SelectorError::Unescaped(character)),
            other => plain.push(other),
        }
    }
    Ok(plain)
}

impl FromIterator<FieldRequirement> for FieldSelector {
    fn from_iter<T: IntoIterator<Item = FieldRequirement>>(requirements: T) -> Self {
        Self { requirements: requirements.into_iter().collect() }
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let operator = if requirement.is_equal { "=" } else { "!=" };
            let value = requirement.value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
            write!(formatter, "{comma}{}{operator}{value}", requirement.field)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("", true)]
    #[case("metadata.name=web", true)]
    #[case("metadata.name==web,status.phase!=Failed", true)]
    #[case("metadata.name!=web", false)]
    #[case("spec.nodeName=", true)]
    #[case(r"odd=a\,b\=c\\d", true)]
    fn field_selectors_are_parsed_and_matched(#[case] text: &str, #[case] expected: bool) {
        let selector = FieldSelector::parse(text).unwrap();
        let matches = selector.matches_with(|field| match field {
            "metadata.name" => Some("web".into()),
            "odd" => Some(r"a,b=c\d".into()),
            _ => None,
        });
        assert_eq!(matches, expected, "{text}");
        assert_eq!(FieldSelector::parse(&selector.to_string()).unwrap(), selector);
    }

    #[test]
    fn invalid_field_selectors_are_refused() {
        let error = FieldSelector::parse("metadata.name").unwrap_err();
        assert_eq!(error.to_string(), "invalid selector: 'metadata.name'; can't understand 'metadata.name'");
        let text = |selector| FieldSelector::parse(selector).unwrap_err().to_string();
        assert_eq!(text(r"a=b\x"), r"invalid field selector: invalid escape sequence: \x");
        assert_eq!(text("b,a=b=c"), "invalid field selector: unescaped character in value: 61");
    }
}
