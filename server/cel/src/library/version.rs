//! Semantic versions as parsed by the library of kube-apiserver (github.com/blang/semver), with its error messages.

const IS_DIGIT: fn(char) -> bool = |c| c.is_ascii_digit();
const IS_IDENTIFIER_CHAR: fn(char) -> bool = |c| c.is_ascii_alphanumeric() || c == '-';

/// Parses a version; its build metadata is dropped, because no function returns or compares it.
pub(super) fn parse(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("Version string empty".into());
    }
    let parts: Vec<&str> = text.splitn(3, '.').collect();
    let [major, minor, rest] = parts[..] else { return Err("No Major.Minor.Patch elements found".into()) };
    check_number(major, "Major")?;
    check_number(minor, "Minor")?;
    let (rest, build) = rest.split_once('+').map_or((rest, None), |(rest, build)| (rest, Some(build)));
    let (patch, pre) = rest.split_once('-').map_or((rest, None), |(patch, pre)| (patch, Some(pre)));
    check_number(patch, "Patch")?;
    pre.into_iter().flat_map(|pre| pre.split('.')).try_for_each(check_prerelease)?;
    build.into_iter().flat_map(|build| build.split('.')).try_for_each(|build| match build {
        "" => Err("Build meta data is empty".to_owned()),
        build if build.chars().all(IS_IDENTIFIER_CHAR) => Ok(()),
        build => Err(format!("Invalid character(s) found in build meta data {build:?}")),
    })?;
    Ok(text.split('+').next().unwrap_or(text).to_owned())
}

/// Removes a leading `v` and the leading zeros of components, and adds missing components as 0.
pub(super) fn normalize(text: &str) -> Result<String, String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text.splitn(3, '.').map(strip_leading_zeros).collect();
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return Err("short version cannot contain PreRelease/Build meta data".into());
    }
    parts.resize(3, "0".to_owned());
    Ok(parts.join("."))
}

fn strip_leading_zeros(part: &str) -> String {
    if part.len() < 2 {
        return part.to_owned();
    }
    let rest = part.trim_start_matches('0');
    if rest.starts_with(IS_DIGIT) { rest.to_owned() } else { format!("0{rest}") }
}

fn check_number(text: &str, component: &str) -> Result<(), String> {
    if !text.chars().all(IS_DIGIT) {
        let component = component.to_lowercase();
        return Err(format!("Invalid character(s) found in {component} number {text:?}"));
    }
    if has_leading_zeros(text) {
        return Err(format!("{component} number must not contain leading zeroes {text:?}"));
    }
    check_u64(text)
}

fn has_leading_zeros(text: &str) -> bool {
    text.len() > 1 && text.starts_with('0')
}

fn check_u64(text: &str) -> Result<(), String> {
    let reason = if text.is_empty() { "invalid syntax" } else { "value out of range" };
    text.parse::<u64>().map(drop).map_err(|_| format!("strconv.ParseUint: parsing {text:?}: {reason}"))
}

fn check_prerelease(text: &str) -> Result<(), String> {
    match text {
        "" => Err("Prerelease is empty".into()),
        _ if text.chars().all(IS_DIGIT) && has_leading_zeros(text) => {
            Err(format!("Numeric PreRelease version must not contain leading zeroes {text:?}"))
        }
        _ if text.chars().all(IS_DIGIT) => check_u64(text),
        _ if text.chars().all(IS_IDENTIFIER_CHAR) => Ok(()),
        _ => Err(format!("Invalid character(s) found in prerelease {text:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("", "Version string empty")]
    #[case("1.0", "No Major.Minor.Patch elements found")]
    #[case("v1.0.0", "Invalid character(s) found in major number \"v1\"")]
    #[case("1.01.0", "Minor number must not contain leading zeroes \"01\"")]
    #[case("1.0.", "strconv.ParseUint: parsing \"\": invalid syntax")]
    #[case("1.0.99999999999999999999", "strconv.ParseUint: parsing \"99999999999999999999\": value out of range")]
    #[case("1.0.0-", "Prerelease is empty")]
    #[case("1.0.0-01", "Numeric PreRelease version must not contain leading zeroes \"01\"")]
    #[case("1.0.0-a_b", "Invalid character(s) found in prerelease \"a_b\"")]
    #[case("1.0.0+", "Build meta data is empty")]
    #[case("1.0.0+a_b", "Invalid character(s) found in build meta data \"a_b\"")]
    fn invalid_versions_are_rejected(#[case] text: &str, #[case] reason: &str) {
        assert_eq!(parse(text), Err(reason.to_owned()));
    }

    #[rstest]
    #[case("v1.0", Ok("1.0.0"))]
    #[case("01.01.01", Ok("1.1.1"))]
    #[case("1", Ok("1.0.0"))]
    #[case("00.0.000-rc.1", Ok("0.0.0-rc.1"))]
    #[case("1.0-rc", Err("short version cannot contain PreRelease/Build meta data"))]
    fn versions_are_normalized(#[case] text: &str, #[case] expected: Result<&str, &str>) {
        assert_eq!(normalize(text), expected.map(str::to_owned).map_err(str::to_owned));
    }

    #[rstest]
    #[case("1.0.0")]
    #[case("0.1.0-alpha.1")]
    #[case("1.2.3-a-b.0+build.01")]
    fn build_metadata_is_dropped(#[case] text: &str) {
        assert_eq!(parse(text), Ok(text.replace("+build.01", "")));
    }
}
