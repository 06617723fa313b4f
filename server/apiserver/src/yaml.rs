//! YAML as API servers read it.

use serde_json::Value;

/// Parses YAML in which the last of duplicate keys is used, as in Go without strict decoding. None if the text is not
/// YAML.
pub fn parse_last_wins(text: &str) -> Option<Value> {
    let options = serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins };
    serde_saphyr::from_str_with_options(text, options).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::duplicate_keys("a: 1\na: 2", Some(json!({"a": 2})))]
    #[case::no_yaml("[", None)]
    fn the_last_key_is_used(#[case] text: &str, #[case] expected: Option<Value>) {
        assert_eq!(parse_last_wins(text), expected);
    }
}
