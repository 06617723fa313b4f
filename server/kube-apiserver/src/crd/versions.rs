//! Order of API version names by preference: `v2`, `v1`, `v1beta2`, `v1beta1`, `v1alpha1`, then other names by text.

use std::cmp::Ordering;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Stability {
    Alpha,
    Beta,
    Stable,
}

/// Stability, major and minor number; `None` for other names.
fn parse(version: &str) -> Option<(Stability, i64, i64)> {
    let rest = version.strip_prefix('v')?;
    let (major, suffix) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
    let number = |text: &str| text.parse::<i64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let (stability, minor) = match (suffix.strip_prefix("beta"), suffix.strip_prefix("alpha")) {
        (Some(minor), _) => (Stability::Beta, number(minor)?),
        (_, Some(minor)) => (Stability::Alpha, number(minor)?),
        (None, None) => (Stability::Stable, suffix.is_empty().then_some(0)?),
    };
    Some((stability, number(major)?, minor))
}

/// Compares by preference (`CompareKubeAwareVersionStrings`); the preferred version is greater.
pub fn compare(a: &str, b: &str) -> Ordering {
    match (parse(a), parse(b)) {
        (Some(x), Some(y)) => x.cmp(&y),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        // Names that are not Kubernetes versions are preferred in alphabetical order.
        (None, None) => b.cmp(a),
    }
}
