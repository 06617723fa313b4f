//! References in queries: `web`, `deploy/web`, `deployments.apps/shop/web`.

use crate::document::columns::Keyword;
use crate::plan::kinds::{KindPattern, KindsByName};
use crate::plan::patterns::{glob_regex, strip_anchors};
use crate::plan::predicate::{Match, Test};
use crowsnest_query::Pattern;

/// Accepted forms, for messages.
const FORMS: &str = "NAME, KIND/NAME or KIND/NAMESPACE/NAME, where KIND may have a group (deployments.apps/shop/web)";

/// A reference in a query, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReferencePattern {
    /// A regular expression: on complete references for [`Self::referrers`], on names for [`Self::objects`].
    Regex(String),
    Parts(ReferenceParts),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReferenceParts {
    /// Empty: any kind.
    kinds: Vec<KindPattern>,
    namespace: Option<String>,
    name: String,
    /// Namespace and name are globs.
    is_glob: bool,
}

impl ReferencePattern {
    /// Parses a reference. Text that is not a reference is an error, whose message is shown as a notice.
    pub fn parse(pattern: &Pattern, kinds: &KindsByName) -> Result<Self, String> {
        let (text, is_glob) = match pattern {
            Pattern::Word(text) | Pattern::Phrase(text) | Pattern::Fuzzy { word: text, .. } => (text, false),
            Pattern::Glob(glob) => (glob, true),
            Pattern::Regex { source, .. } => return Ok(Self::Regex(strip_anchors(source))),
        };
        let lower = text.to_lowercase();
        let (kind, namespace, name) = match lower.split('/').collect::<Vec<_>>().as_slice() {
            [name] => (None, None, *name),
            [kind, name] => (Some(*kind), None, *name),
            [kind, namespace, name] => (Some(*kind), Some(*namespace), *name),
            _ => return Err(format!("{text} is not a reference; use {FORMS}")),
        };
        if name.is_empty() || kind.is_some_and(str::is_empty) {
            return Err(format!("{text} is not a reference; use {FORMS}"));
        }
        Ok(Self::Parts(ReferenceParts {
            kinds: kind.map(|kind| KindPattern::resolve(kind, kinds)).unwrap_or_default(),
            // `KIND//NAME` is a reference to a cluster-scoped object.
            namespace: namespace.filter(|namespace| !namespace.is_empty()).map(str::to_owned),
            name: name.to_owned(),
            is_glob,
        }))
    }

    /// The kind of this reference, if no cluster serves it.
    pub fn unknown_kind(&self) -> Option<&str> {
        let Self::Parts(parts) = self else { return None };
        parts.kinds.iter().find_map(|kind| match kind {
            KindPattern::Unknown(kind) => Some(kind.as_str()),
            KindPattern::Known(_) | KindPattern::Glob(_) => None,
        })
    }

    /// Condition for objects with this reference in the column `keyword`.
    pub fn referrers(&self, keyword: Keyword) -> Match {
        match self {
            Self::Regex(regex) => Match::Keyword(keyword, Test::Regex(regex.clone())),
            Self::Parts(parts) => parts.referrers(keyword),
        }
    }

    /// Condition for the objects that this reference names.
    pub fn objects(&self) -> Match {
        match self {
            Self::Regex(regex) => Match::Keyword(Keyword::Name, Test::Regex(regex.clone())),
            Self::Parts(parts) => parts.objects(),
        }
    }
}

impl ReferenceParts {
    fn referrers(&self, keyword: Keyword) -> Match {
        // Owner references have no namespace: an owner is in the namespace of the object.
        let owner_namespace = self.namespace.as_ref().filter(|_| keyword == Keyword::Owner);
        let namespace = self.namespace.as_ref().filter(|_| keyword != Keyword::Owner);
        let kind_texts: Option<Vec<String>> = self.kinds.iter().map(KindPattern::reference_text).collect();
        let found = match kind_texts.filter(|kinds| !self.is_glob && !kinds.is_empty()) {
            Some(kinds) => {
                let prefix = namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
                let term =
                    |kind: String| Match::Keyword(keyword, Test::Equals(format!("{kind}/{prefix}{}", self.name)));
                Match::any_of(kinds.into_iter().map(term).collect())
            }
            None => {
                let kinds: Vec<String> = self.kinds.iter().map(KindPattern::regex).collect();
                let kind = if kinds.is_empty() { "[^/]*".to_owned() } else { format!("(?:{})", kinds.join("|")) };
                let prefix = namespace.map(|namespace| format!("{}/", self.part_regex(namespace))).unwrap_or_default();
                Match::Keyword(keyword, Test::Regex(format!("{kind}/{prefix}{}", self.part_regex(&self.name))))
            }
        };
        match owner_namespace {
            Some(namespace) => Match::And(vec![self.in_namespace(namespace), found]),
            None => found,
        }
    }

    fn objects(&self) -> Match {
        let mut all = vec![Match::Keyword(Keyword::Name, Test::Regex(self.part_regex(&self.name)))];
        if !self.kinds.is_empty() {
            all.push(Match::any_of(self.kinds.iter().map(KindPattern::objects).collect()));
        }
        all.extend(self.namespace.as_ref().map(|namespace| self.in_namespace(namespace)));
        Match::And(all)
    }

    fn in_namespace(&self, namespace: &str) -> Match {
        Match::Keyword(Keyword::Namespace, Test::Regex(self.part_regex(namespace)))
    }

    /// Regular expression for a namespace or name.
    fn part_regex(&self, text: &str) -> String {
        if self.is_glob { glob_regex(text, "[^/]") } else { regex::escape(text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::kinds::GroupKind;
    use rstest::rstest;
    use std::collections::BTreeSet;

    fn parse(text: &str) -> Result<ReferencePattern, String> {
        let deployment_in = |group: &str| GroupKind { group: group.to_owned(), kind: "deployment".to_owned() };
        let kinds = BTreeSet::from([deployment_in("apps"), deployment_in("x.io")]);
        let names = ["deployment", "deployments"].map(|name| (name.to_owned(), kinds.clone()));
        let pattern = match text.contains('*') {
            true => Pattern::Glob(text.to_owned()),
            false => Pattern::Word(text.to_owned()),
        };
        ReferencePattern::parse(&pattern, &KindsByName::from(names))
    }

    #[rstest]
    #[case::name("web", &["deployment.apps/web", "deployment.x.io/web", "secret/web"])]
    #[case::kind("deployment/web", &["deployment.apps/web", "deployment.x.io/web"])]
    #[case::group("Deployment.apps/web", &["deployment.apps/web"])]
    #[case::plural("deployments.apps/shop/web", &["deployment.apps/shop/web"])]
    #[case::of_another_group("deployments.x.io/web", &["deployment.x.io/web"])]
    #[case::unknown_kind("secret/web", &["secret/web"])]
    #[case::glob("deployment/sh*/we*", &["deployment.apps/shop/web"])]
    #[case::glob_of_kinds("*.apps/web", &["deployment.apps/web"])]
    #[case::without_namespace("deployment.apps//web", &["deployment.apps/web"])]
    #[case::other_namespace("deployment.apps/team/web", &[])]
    fn references_are_found(#[case] text: &str, #[case] expected: &[&str]) {
        let terms = ["deployment.apps/web", "deployment.apps/shop/web", "deployment.x.io/web", "secret/web"];
        let found = terms.into_iter().filter(|term| matches_term(&parse(text).unwrap().referrers(Keyword::Uses), term));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    fn matches_term(matches: &Match, term: &str) -> bool {
        match matches {
            Match::Or(parts) => parts.iter().any(|part| matches_term(part, term)),
            Match::Keyword(Keyword::Uses, test) => test.passes(term, test.regex().as_ref()),
            other => panic!("{other:?}"),
        }
    }

    #[rstest]
    #[case("a/b/c/d")]
    #[case("/web")]
    #[case("deployment/")]
    fn other_forms_are_rejected(#[case] text: &str) {
        let notice = parse(text).unwrap_err();
        assert_eq!(notice, format!("{text} is not a reference; use {FORMS}"));
    }

    #[rstest]
    #[case("secret/web", Some("secret"))]
    #[case("deployment/web", None)]
    #[case("secret.v1/web", None)]
    #[case("s*/web", None)]
    #[case("web", None)]
    fn kinds_that_no_cluster_serves_are_reported(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(parse(text).unwrap().unknown_kind(), expected);
    }
}
