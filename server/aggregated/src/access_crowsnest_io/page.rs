//! Pages of results. A token names the last row by its binding, so that rows before it may change between two pages.

use std::fmt;

/// Default and maximum number of rows per page.
pub(super) const MAX_PAGE_SIZE: usize = 1000;

/// Position of a row: cluster, namespace and name of the binding, and the number of the row of this binding. Rows that
/// need no binding have an empty name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowKey {
    pub cluster: String,
    pub namespace: String,
    pub binding: String,
    pub nth: usize,
}

impl RowKey {
    /// Parses a token; `None` if it is invalid.
    pub fn parse(token: &str) -> Option<Self> {
        let parts: Vec<&str> = token.split('/').collect();
        let [cluster, namespace, binding, nth] = parts.as_slice() else { return None };
        let owned = |part: &&str| (*part).to_owned();
        Some(Self {
            cluster: owned(cluster),
            namespace: owned(namespace),
            binding: owned(binding),
            nth: nth.parse().ok()?,
        })
    }
}

/// Formats the token. Names of RBAC objects contain no slash, so the separator is unambiguous.
impl fmt::Display for RowKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}/{}/{}", self.cluster, self.namespace, self.binding, self.nth)
    }
}

/// Collects the rows of one page. The caller passes all rows in the order of their keys.
pub(super) struct Page<T> {
    after: Option<RowKey>,
    limit: usize,
    rows: Vec<T>,
    last: Option<RowKey>,
    /// Number of rows after the page.
    remaining: usize,
}

impl<T> Page<T> {
    pub fn new(after: Option<RowKey>, limit: usize) -> Self {
        Self { after, limit, rows: Vec::new(), last: None, remaining: 0 }
    }

    /// Adds a row if it is on the page, and counts it if it is after the page. `row` is called only if the row is added.
    pub fn add_if_on_page(&mut self, key: RowKey, row: impl FnOnce() -> T) {
        if self.after.as_ref().is_some_and(|after| key <= *after) {
            return;
        }
        if self.rows.len() < self.limit {
            self.rows.push(row());
            self.last = Some(key);
        } else {
            self.remaining += 1;
        }
    }

    /// The rows of the page. If there are more, also the token of the next page and the number of rows after this one.
    pub fn finish(self) -> (Vec<T>, Option<(String, usize)>) {
        let next = self.last.filter(|_| self.remaining > 0).map(|last| (last.to_string(), self.remaining));
        (self.rows, next)
    }
}

/// Numbers the rows of each binding.
#[derive(Default)]
pub(super) struct Numbering {
    binding: Option<(String, String)>,
    nth: usize,
}

impl Numbering {
    /// The key of the next row, in the order of the bindings.
    pub fn key(&mut self, cluster: &str, namespace: &str, binding: &str) -> RowKey {
        let is_same = self.binding.as_ref().is_some_and(|last| last.0 == namespace && last.1 == binding);
        if is_same {
            self.nth += 1;
        } else {
            self.nth = 0;
            self.binding = Some((namespace.to_owned(), binding.to_owned()));
        }
        RowKey {
            cluster: cluster.to_owned(),
            namespace: namespace.to_owned(),
            binding: binding.to_owned(),
            nth: self.nth,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_continue_after_the_last_row() {
        let rows = |after: Option<RowKey>| {
            let (mut page, mut numbering) = (Page::new(after, 2), Numbering::default());
            for (namespace, binding) in [("", ""), ("", "admins"), ("", "admins"), ("shop", "a"), ("shop", "b")] {
                let key = numbering.key("m1", namespace, binding);
                let row = key.to_string();
                page.add_if_on_page(key, || row);
            }
            page.finish()
        };
        let (first, next) = rows(None);
        assert_eq!(
            (first, next.clone()),
            (vec!["m1///0".into(), "m1//admins/0".into()], Some(("m1//admins/0".into(), 3)))
        );
        let (second, next) = rows(RowKey::parse(&next.unwrap().0));
        assert_eq!(
            (second, next.clone()),
            (vec!["m1//admins/1".into(), "m1/shop/a/0".into()], Some(("m1/shop/a/0".into(), 1)))
        );
        assert_eq!(rows(RowKey::parse(&next.unwrap().0)), (vec!["m1/shop/b/0".to_owned()], None));
    }

    #[rstest::rstest]
    #[case("m1///0", true)]
    #[case("@control-plane/shop/system:web/12", true)]
    #[case("m1//0", false)]
    #[case("m1///x", false)]
    #[case("", false)]
    fn tokens_are_checked(#[case] token: &str, #[case] expected: bool) {
        assert_eq!(RowKey::parse(token).map(|key| key.to_string()), expected.then(|| token.to_owned()));
    }
}
