//! Durations in flags.

use std::time::Duration;

/// Parses a duration such as `90s` or `1h30m`; it must be longer than 0.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let span: jiff::SignedDuration =
        text.parse().map_err(|_| format!("invalid duration {text:?}: expected a value such as 90s or 15m"))?;
    Duration::try_from(span)
        .ok()
        .filter(|wait| !wait.is_zero())
        .ok_or_else(|| "the duration must be longer than 0".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("60s", Ok(60))]
    #[case("1h30m", Ok(5400))]
    #[case("0s", Err("must be longer than 0"))]
    #[case("soon", Err("soon"))]
    fn durations_are_parsed(#[case] text: &str, #[case] expected: Result<u64, &str>) {
        match (parse_duration(text), expected) {
            (Ok(read), Ok(seconds)) => assert_eq!(read.as_secs(), seconds),
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
            (read, _) => panic!("{text}: {read:?}"),
        }
    }
}
