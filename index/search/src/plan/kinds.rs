//! Kinds as queries name them: by kind, plural or short name, with or without a group.

use crate::document::columns::Keyword;
use crate::plan::patterns::glob_regex;
use crate::plan::predicate::{Match, Test};
use crowsnest_api::propagation::KindSet;
use std::collections::{BTreeMap, BTreeSet};

/// A kind in lower case, and its group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupKind {
    /// Empty for the core group.
    pub group: String,
    pub kind: String,
}

/// Kinds of the fleet by their lower-case kind, plural and short names.
pub type KindsByName = BTreeMap<String, BTreeSet<GroupKind>>;

/// Kinds that `kind:workload` matches, by group.
const WORKLOADS: [(&str, &[&str]); 3] = [
    ("", &["pod", "replicationcontroller"]),
    ("apps", &["daemonset", "deployment", "replicaset", "statefulset"]),
    ("batch", &["cronjob", "job"]),
];

/// A kind in a query, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KindPattern {
    /// A kind of one group.
    Known(GroupKind),
    /// A kind that no cluster serves, of any group.
    Unknown(String),
    /// A glob on the kind, or on `kind.group`.
    Glob(String),
}

impl GroupKind {
    /// `deployment.apps`, or `pod` for the core group.
    pub fn qualified_name(&self) -> String {
        let Self { group, kind } = self;
        if group.is_empty() { kind.clone() } else { format!("{kind}.{group}") }
    }
}

impl KindPattern {
    /// Kinds with a name: `deploy`, `Deployment.apps`, `deployments.apps`, `deployments.v1.apps`. Without a group, all
    /// kinds of that name.
    pub fn resolve(word: &str, kinds: &KindsByName) -> Vec<Self> {
        let word = word.to_lowercase();
        if word.contains(['*', '?']) {
            return vec![Self::Glob(word)];
        }
        if let Some(found) = kinds.get(&word) {
            return found.iter().cloned().map(Self::Known).collect();
        }
        let Some((name, group)) = word.split_once('.') else { return vec![Self::Unknown(word)] };
        let group = strip_version(group);
        let found = kinds.get(name).into_iter().flatten().filter(|found| found.group == group);
        let found: Vec<Self> = found.cloned().map(Self::Known).collect();
        match found.is_empty() {
            true => vec![Self::Known(GroupKind { group: group.to_owned(), kind: name.to_owned() })],
            false => found,
        }
    }

    /// Objects of the kind.
    pub fn objects(&self) -> Match {
        match self {
            Self::Known(GroupKind { group, kind }) => kinds_in_group(group, &[kind]),
            Self::Unknown(kind) => Match::Keyword(Keyword::Kind, Test::Equals(kind.clone())),
            Self::Glob(glob) => match glob.split_once('.') {
                Some((kind, group)) => Match::And(vec![
                    Match::Keyword(Keyword::Kind, Test::Regex(glob_regex(kind, "."))),
                    Match::Keyword(Keyword::Group, Test::Regex(glob_regex(group, "."))),
                ]),
                None => Match::Keyword(Keyword::Kind, Test::Regex(glob_regex(glob, "."))),
            },
        }
    }

    /// The kind as it is written in references; None for a glob.
    pub fn reference_text(&self) -> Option<String> {
        match self {
            Self::Known(kind) => Some(kind.qualified_name()),
            Self::Unknown(kind) => Some(kind.clone()),
            Self::Glob(_) => None,
        }
    }

    /// A regular expression for the kind as it is written in references.
    pub fn regex(&self) -> String {
        match self {
            Self::Known(kind) => regex::escape(&kind.qualified_name()),
            Self::Unknown(kind) => regex::escape(kind),
            Self::Glob(glob) => glob_regex(glob, if glob.contains('.') { "[^/]" } else { "[^/.]" }),
        }
    }
}

/// Objects of a kind, plural or short name, with or without a group, and of `workload`.
pub(crate) fn kind_objects(word: &str, kinds: &KindsByName) -> Match {
    let word = word.to_lowercase();
    if matches!(word.as_str(), "workload" | "workloads") {
        return Match::Or(WORKLOADS.iter().map(|(group, kinds)| kinds_in_group(group, kinds)).collect());
    }
    let kind_patterns = KindPattern::resolve(&word, kinds);
    if word.contains('.') {
        return Match::any_of(kind_patterns.iter().map(KindPattern::objects).collect());
    }
    // Without a group, kinds of any group match, including those that no cluster serves.
    let kinds: BTreeSet<String> = kind_patterns
        .into_iter()
        .map(|kind_pattern| match kind_pattern {
            KindPattern::Known(GroupKind { kind, .. }) | KindPattern::Unknown(kind) | KindPattern::Glob(kind) => kind,
        })
        .collect();
    Match::any_of(kinds.into_iter().map(|kind| Match::Keyword(Keyword::Kind, Test::Equals(kind))).collect())
}

/// Objects of the kinds of a set.
pub(crate) fn objects_of_kinds(set: KindSet) -> Match {
    let kinds: Vec<String> = set.kinds.iter().map(|kind| kind.to_lowercase()).collect();
    kinds_in_group(set.group, &kinds)
}

/// Objects of one of these kinds of a group, in lower case.
pub(crate) fn kinds_in_group(group: &str, kinds: &[impl AsRef<str>]) -> Match {
    let kinds = kinds.iter().map(|kind| Match::Keyword(Keyword::Kind, Test::Equals(kind.as_ref().to_owned())));
    let group = match group {
        // The core group has no name.
        "" => Match::has(Keyword::Group.name()).negated(),
        group => Match::Keyword(Keyword::Group, Test::Equals(group.to_owned())),
    };
    Match::And(vec![Match::any_of(kinds.collect()), group])
}

/// Removes a version before the group: `apps` for `v1.apps`, as in kubectl's `deployments.v1.apps`.
fn strip_version(group: &str) -> &str {
    let (first, rest) = group.split_once('.').unwrap_or((group, ""));
    let is_version = first.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if is_version { rest } else { group }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn kinds() -> KindsByName {
        let mut kinds = KindsByName::new();
        for (group, kind, names) in [
            ("apps", "deployment", ["deployment", "deployments", "deploy"]),
            ("platform.example.com", "deployment", ["deployment", "deployments", "pd"]),
            ("", "pod", ["pod", "pods", "po"]),
        ] {
            for name in names {
                let kind = GroupKind { group: group.to_owned(), kind: kind.to_owned() };
                kinds.entry(name.to_owned()).or_default().insert(kind);
            }
        }
        kinds
    }

    #[rstest]
    #[case::kind("Deployment", &["deployment.apps", "deployment.platform.example.com"])]
    #[case::short_name("deploy", &["deployment.apps"])]
    #[case::core("pods", &["pod"])]
    #[case::kind_and_group("Deployment.apps", &["deployment.apps"])]
    #[case::plural_and_group("deployments.platform.example.com", &["deployment.platform.example.com"])]
    #[case::version("deployments.v1.apps", &["deployment.apps"])]
    #[case::version_of_core("pods.v1", &["pod"])]
    #[case::core_by_a_dot("pods.", &["pod"])]
    #[case::group_that_is_not_served("widgets.acme.io", &["widgets.acme.io"])]
    #[case::kind_that_is_not_served("Widget", &["widget"])]
    fn kinds_are_named(#[case] word: &str, #[case] expected: &[&str]) {
        let named: Vec<String> =
            KindPattern::resolve(word, &kinds()).iter().filter_map(KindPattern::reference_text).collect();
        assert_eq!(named, expected);
    }

    /// References are written with and without the group.
    #[rstest]
    #[case("deploy", "deployment.apps", true)]
    #[case("deploy", "deployment", false)]
    #[case("deploy", "deployment.platform.example.com", false)]
    #[case("widget", "widget", true)]
    #[case("*set", "replicaset", true)]
    #[case("*set", "replicaset.apps", false)]
    #[case("dep*.a*", "deployment.apps", true)]
    #[case("dep*.a*", "deployment", false)]
    fn kinds_match_references(#[case] word: &str, #[case] written: &str, #[case] expected: bool) {
        let matches = |kind: &KindPattern| {
            let test = Test::Regex(kind.regex());
            test.passes(written, test.regex().as_ref())
        };
        assert_eq!(KindPattern::resolve(word, &kinds()).iter().any(matches), expected);
    }
}
