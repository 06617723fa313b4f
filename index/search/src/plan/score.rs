//! What hits are ranked by: where a word was found. The same for every engine.

/// How much more an exact name counts than a word somewhere in the manifest.
pub const NAME_EXACT: f32 = 100.0;
pub const NAME_PREFIX: f32 = 40.0;
pub const ANYTHING: f32 = 10.0;
pub const MESSAGE: f32 = 3.0;
pub const CONTENT: f32 = 1.0;

/// Whether a bare word was found by this score in an object's columns, and not in a message: its manifest says nothing more.
pub fn is_by_columns(score: f32) -> bool {
    let mut left = score;
    let mut holds = |worth: f32| {
        let holds = left >= worth;
        left -= if holds { worth } else { 0.0 };
        holds
    };
    // Every sum of them is of these alone.
    let [exact, prefix, anything, message] = [NAME_EXACT, NAME_PREFIX, ANYTHING, MESSAGE].map(&mut holds);
    (exact || prefix || anything) && !message
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(NAME_EXACT + NAME_PREFIX + ANYTHING + CONTENT, true)]
    #[case(NAME_PREFIX + ANYTHING, true)]
    #[case(ANYTHING + CONTENT, true)]
    #[case(NAME_PREFIX + MESSAGE + CONTENT, false)]
    #[case(ANYTHING + MESSAGE, false)]
    #[case(MESSAGE + CONTENT, false)]
    #[case(CONTENT, false)]
    #[case(0.0, false)]
    fn a_score_says_where_a_word_is(#[case] score: f32, #[case] expected: bool) {
        assert_eq!(is_by_columns(score), expected);
    }
}
