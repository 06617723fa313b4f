//! Scores of hits, by where a word was found. Shared by all engines.

/// Weight of an exact name, relative to a word in the manifest.
pub const NAME_EXACT: f32 = 100.0;
pub const NAME_PREFIX: f32 = 40.0;
pub const ANYTHING: f32 = 10.0;
pub const MESSAGE: f32 = 3.0;
pub const CONTENT: f32 = 1.0;

/// True if this score shows that a bare word matched in columns and in no message, so that the manifest adds no
/// reasons.
pub fn is_by_columns(score: f32) -> bool {
    let mut left = score;
    let mut holds = |worth: f32| {
        let holds = left >= worth;
        left -= if holds { worth } else { 0.0 };
        holds
    };
    // Every combination of weights has a distinct sum.
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
    fn a_score_identifies_the_matched_columns(#[case] score: f32, #[case] expected: bool) {
        assert_eq!(is_by_columns(score), expected);
    }
}
