//! Words within some edits of another one as a regular expression, because engines have no fuzzy prefix query.
//!
//! Edits are insertions, deletions, substitutions and swaps of adjacent letters, as [`crate::plan::patterns::is_within_edits`]
//! counts them: swapped letters are not edited again (optimal string alignment distance). The pattern of a word is built from
//! those of its halves: the edits are divided between them, or one edit swaps the two letters in the middle. Such a pattern grows
//! only slightly faster than the word. An alternative for each edit at each position would need 48,000 characters for 29
//! letters and two edits.

use super::regex::escape_literal;

/// The pattern of all strings within `distance` edits of a word, in Lucene's dialect. The distance is 2 at most.
pub fn fuzzy_pattern(word: &str, distance: u8) -> String {
    let word: Vec<char> = word.chars().collect();
    pattern_within(&word, distance)
}

fn escape(word: &[char]) -> String {
    escape_literal(&word.iter().collect::<String>())
}

fn pattern_within(word: &[char], distance: u8) -> String {
    match (word, distance) {
        (_, 0) => escape(word),
        ([], _) => ".?".repeat(distance.into()),
        ([_], 1) => format!("(.?{0}?|{0}.)", escape(word)),
        ([_], _) => format!("(.?.?|{0}..|.{0}.|..{0})", escape(word)),
        _ => split_pattern(word, distance),
    }
}

fn split_pattern(word: &[char], distance: u8) -> String {
    let (beginning, end) = word.split_at(word.len() / 2);
    let apart =
        (0..=distance).map(|edits| [pattern_within(beginning, edits), pattern_within(end, distance - edits)].concat());
    let mut parts: Vec<String> = apart.collect();
    if let ([before @ .., last], [first, behind @ ..]) = (beginning, end)
        && last != first
    {
        let swapped = escape(&[*first, *last]);
        let across = (0..distance).map(|edits| {
            [pattern_within(before, edits), swapped.clone(), pattern_within(behind, distance - 1 - edits)].concat()
        });
        parts.extend(across);
    }
    format!("({})", parts.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::patterns;
    use proptest::prelude::*;

    fn matches(pattern: &str, text: &str) -> bool {
        regex::Regex::new(&format!("^(?s:{pattern})$")).unwrap().is_match(text)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn patterns_match_the_words_within_the_distance(word in "[abc-]{0,6}", term in "[abc-]{0,9}", distance in 0..3_u8) {
            let pattern = fuzzy_pattern(&word, distance);
            prop_assert_eq!(matches(&pattern, &term), patterns::is_within_edits(&term, &word, distance, false), "{}", pattern);
            let begins = matches(&format!("{pattern}.*"), &term);
            prop_assert_eq!(begins, patterns::is_within_edits(&term, &word, distance, true), "{}", pattern);
        }
    }

    #[test]
    fn patterns_stay_short() {
        let length = |letters: usize, distance| fuzzy_pattern(&"abcdefghij".repeat(8)[..letters], distance).len();
        let lengths = [length(21, 1), length(21, 2), length(29, 2), length(63, 2)];
        assert!(lengths[3] < 20_000, "{lengths:?}");
    }
}
