//! Order of API version names by preference: `v2`, `v1`, `v1beta2`, `v1beta1`, `v1alpha1`, then other names by text.

use std::cmp::Ordering;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Stability {
    Alpha,
    Beta,
    Stable,
}

/// Stability, major and minor number; `None` for other names.
fn parse(version: &str) -> Option<(Stability, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let major: u64 = rest[..digits].parse().ok().filter(|n| *n > 0)?;
    let tail = &rest[digits..];
    let minor = |text: &str| text.parse::<u64>().ok().filter(|n| *n > 0 && !text.starts_with('0'));
    if tail.is_empty() {
        return Some((Stability::Stable, major, 0));
    }
    if let Some(beta) = tail.strip_prefix("beta") {
        return Some((Stability::Beta, major, minor(beta)?));
    }
    Some((Stability::Alpha, major, minor(tail.strip_prefix("alpha")?)?))
}

/// Compares by preference; the preferred version is greater.
pub fn compare(a: &str, b: &str) -> Ordering {
    match (parse(a), parse(b)) {
        (Some(x), Some(y)) => x.cmp(&y),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        // Names that are not Kubernetes versions are preferred in alphabetical order.
        (None, None) => b.cmp(a),
    }
}
