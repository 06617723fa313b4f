//! Scores of hits, by where a word was found. Shared by all engines.

/// Weight of a word that is the complete name.
pub const NAME_EXACT: f32 = 100.0;
/// Weight of a prefix of the name.
pub const NAME_PREFIX: f32 = 40.0;
/// Weight of a word in any column.
pub const ANY_COLUMN: f32 = 10.0;
/// Weight of a word in a message.
pub const MESSAGE: f32 = 3.0;
/// Weight of a word in the manifest.
pub const CONTENT: f32 = 1.0;

/// True if the score shows that a bare word matched in columns and in no message. The reasons of such a hit are found
/// without its manifest.
pub fn matches_columns_only(score: f32) -> bool {
    let mut remaining = score;
    let mut take_weight = |weight: f32| {
        let is_included = remaining >= weight;
        remaining -= if is_included { weight } else { 0.0 };
        is_included
    };
    // Each weight is greater than the sum of all smaller ones.
    let [exact, prefix, any_column, message] = [NAME_EXACT, NAME_PREFIX, ANY_COLUMN, MESSAGE].map(&mut take_weight);
    (exact || prefix || any_column) && !message
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(NAME_EXACT + NAME_PREFIX + ANY_COLUMN + CONTENT, true)]
    #[case(NAME_PREFIX + ANY_COLUMN, true)]
    #[case(ANY_COLUMN + CONTENT, true)]
    #[case(NAME_PREFIX + MESSAGE + CONTENT, false)]
    #[case(ANY_COLUMN + MESSAGE, false)]
    #[case(MESSAGE + CONTENT, false)]
    #[case(CONTENT, false)]
    #[case(0.0, false)]
    fn a_score_identifies_the_matched_columns(#[case] score: f32, #[case] expected: bool) {
        assert_eq!(matches_columns_only(score), expected);
    }
}
