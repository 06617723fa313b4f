//! Index lists of indexed jobs, such as `1,3-5`, in increasing order. Has no side effects.

/// Number of indexes in a list.
pub(super) fn count_indexes(text: &str, completions: i64) -> Result<i64, String> {
    let (mut last, mut total): (Option<i64>, i64) = (None, 0);
    for fragment in text.split(',').filter(|_| !text.is_empty()) {
        let (from, to) = parse_interval(fragment, completions)?;
        if let Some(last) = last.filter(|last| *last >= from) {
            return Err(format!("non-increasing order, previous: {last}, current: {from}"));
        }
        total += to - from + 1;
        last = Some(to);
    }
    Ok(total)
}

fn parse_interval(fragment: &str, completions: i64) -> Result<(i64, i64), String> {
    let limits: Vec<&str> = fragment.split('-').collect();
    let limit = |text: &str| {
        let index: i64 = text.parse().map_err(|_| format!("cannot convert string to integer for index: \"{text}\""))?;
        if index >= completions { Err(format!("too large index: \"{text}\"")) } else { Ok(index) }
    };
    match limits.as_slice() {
        [only] => limit(only).map(|index| (index, index)),
        [from, to] => match (limit(from)?, limit(to)?) {
            (from, to) if from >= to => Err(format!("non-increasing order, previous: {from}, current: {to}")),
            interval => Ok(interval),
        },
        _ => Err(format!(
            "the fragment \"{fragment}\" violates the requirement that an index interval can have at most two parts separated by '-'"
        )),
    }
}

/// The first index in both lists; invalid intervals are ignored.
pub(super) fn find_overlap(one: &str, other: &str, completions: i64) -> Option<i64> {
    let intervals = |text: &str| -> Vec<(i64, i64)> {
        text.split(',').filter_map(|fragment| parse_interval(fragment, completions).ok()).collect()
    };
    let (one, other) = (intervals(one), intervals(other));
    let pairs = one.iter().flat_map(|a| other.iter().map(move |b| (a, b)));
    pairs.filter(|(a, b)| a.0 <= b.1 && b.0 <= a.1).map(|(a, b)| a.0.max(b.0)).min()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing("", Ok(0))]
    #[case::some("0,2-3", Ok(3))]
    #[case::too_large("9", Err("too large index: \"9\""))]
    #[case::not_a_number("x", Err("cannot convert string to integer for index: \"x\""))]
    #[case::decreasing("3,1", Err("non-increasing order, previous: 3, current: 1"))]
    #[case::decreasing_interval("3-1", Err("non-increasing order, previous: 3, current: 1"))]
    #[case::three(
        "1-2-3",
        Err(
            "the fragment \"1-2-3\" violates the requirement that an index interval can have at most two parts separated by '-'"
        )
    )]
    fn indexes_are_counted(#[case] text: &str, #[case] expected: Result<i64, &str>) {
        assert_eq!(count_indexes(text, 5), expected.map_err(str::to_owned));
    }

    #[rstest]
    #[case("0-2,4", "3", None)]
    #[case("0-2,4", "2,3", Some(2))]
    #[case("x,4", "1-4", Some(4))]
    fn the_first_common_index_is_found(#[case] one: &str, #[case] other: &str, #[case] expected: Option<i64>) {
        assert_eq!(find_overlap(one, other, 5), expected);
    }
}
