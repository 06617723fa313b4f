//! Completion indexes of Indexed Jobs, in the format of statuses and success policies.

use std::collections::BTreeSet;

/// Formats indexes: `0-2,5`.
pub fn format_indexes(indexes: &BTreeSet<i32>) -> String {
    let mut ranges: Vec<(i32, i32)> = Vec::new();
    for index in indexes {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => ranges.push((*index, *index)),
        }
    }
    let text = ranges.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    });
    text.collect::<Vec<_>>().join(",")
}

/// Parses ranges of indexes. Malformed ranges are skipped.
pub fn parse_indexes(text: &str) -> BTreeSet<i32> {
    let ranges = text.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<i32>().ok()?..=last.parse::<i32>().ok()?)
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_or_more_consecutive_indexes_are_formatted_as_a_range() {
        let set = parse_indexes("0-2,4,5,9");
        assert_eq!(set.len(), 6);
        assert_eq!(format_indexes(&set), "0-2,4,5,9");
        assert!(parse_indexes("").is_empty());
    }
}
