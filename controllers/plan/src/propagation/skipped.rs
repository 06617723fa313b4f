//! APIs and namespaces that the operator excludes from propagation, in addition to those that are never propagated.

use std::collections::BTreeSet;
use std::str::FromStr;

use crowsnest_apimachinery::names::Gvr;
use regex::RegexSet;

/// APIs whose objects are not propagated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SkippedApis {
    groups: BTreeSet<String>,
    /// Entries `group/version`.
    versions: BTreeSet<String>,
    /// apiVersion and kind, with the kind in lower case.
    kinds: BTreeSet<(String, String)>,
}

/// An invalid entry of `--skipped-propagating-apis`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid entry {0:?}: must be <group>, <group>/<version>, <group>/<version>/<Kind>,<Kind> or v1/<Kind>,<Kind>")]
pub struct SkippedApisError(String);

/// The core group has an empty name, so its kinds are given by version alone.
const CORE: &str = "v1";

impl FromStr for SkippedApis {
    type Err = SkippedApisError;

    /// Entries are separated by semicolons. Several kinds of one version are separated by commas.
    fn from_str(text: &str) -> Result<Self, SkippedApisError> {
        let mut skipped = SkippedApis::default();
        for entry in text.split(';').map(str::trim).filter(|entry| !entry.is_empty()) {
            skipped.add(entry).ok_or_else(|| SkippedApisError(entry.to_owned()))?;
        }
        Ok(skipped)
    }
}

impl SkippedApis {
    fn add(&mut self, entry: &str) -> Option<()> {
        let parts: Vec<&str> = entry.split('/').collect();
        let is_name = |part: &str| !part.is_empty() && !part.contains([',', ' ']);
        match parts.as_slice() {
            [group] if is_name(group) && *group != CORE => {
                self.groups.insert((*group).to_owned());
                Some(())
            }
            [CORE, kinds] => self.add_kinds(CORE, kinds),
            [group, version] if is_name(group) && is_name(version) => {
                self.versions.insert(format!("{group}/{version}"));
                Some(())
            }
            [group, version, kinds] if is_name(group) && is_name(version) => {
                self.add_kinds(&format!("{group}/{version}"), kinds)
            }
            _ => None,
        }
    }

    fn add_kinds(&mut self, api_version: &str, kinds: &str) -> Option<()> {
        for kind in kinds.split(',').map(str::trim) {
            if kind.is_empty() {
                return None;
            }
            self.kinds.insert((api_version.to_owned(), kind.to_lowercase()));
        }
        Some(())
    }

    pub fn contains(&self, gvr: &Gvr, kind: &str) -> bool {
        let api_version = gvr.api_version();
        self.groups.contains(&*gvr.group)
            || self.versions.contains(&api_version)
            || self.kinds.contains(&(api_version, kind.to_lowercase()))
    }
}

/// Namespaces whose objects are not propagated, and that are not created in members.
#[derive(Debug, Clone)]
pub struct SkippedNamespaces(RegexSet);

/// Default of `--skipped-propagating-namespaces`.
pub const DEFAULT_SKIPPED_NAMESPACES: &str = "kube-.*";

impl SkippedNamespaces {
    /// Compiles expressions, each of which must match a whole name.
    pub fn new(expressions: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, regex::Error> {
        let anchored = expressions.into_iter().map(|expression| format!("^(?:{})$", expression.as_ref()));
        RegexSet::new(anchored).map(SkippedNamespaces)
    }

    pub fn contains(&self, namespace: &str) -> bool {
        self.0.is_match(namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::nothing("", ("apps", "v1", "Deployment"), false)]
    #[case::group("batch;apps", ("apps", "v1", "Deployment"), true)]
    #[case::group_of_another("batch", ("apps", "v1", "Deployment"), false)]
    #[case::version("networking.k8s.io/v1beta1", ("networking.k8s.io", "v1beta1", "Ingress"), true)]
    #[case::other_version("networking.k8s.io/v1beta1", ("networking.k8s.io", "v1", "Ingress"), false)]
    #[case::kind("networking.k8s.io/v1/ingress,IngressClass", ("networking.k8s.io", "v1", "Ingress"), true)]
    #[case::second_kind("networking.k8s.io/v1/Ingress,IngressClass", ("networking.k8s.io", "v1", "IngressClass"), true)]
    #[case::other_kind("networking.k8s.io/v1/Ingress", ("networking.k8s.io", "v1", "NetworkPolicy"), false)]
    #[case::core_kind(" v1/Pod,Secret ; ", ("", "v1", "Secret"), true)]
    #[case::core_other_kind("v1/Pod", ("", "v1", "ConfigMap"), false)]
    fn skipped_apis_are_recognized(#[case] text: &str, #[case] resource: (&str, &str, &str), #[case] expected: bool) {
        let (group, version, kind) = resource;
        let skipped: SkippedApis = text.parse().expect("valid");
        assert_eq!(skipped.contains(&Gvr::new(group, version, "things"), kind), expected);
    }

    #[rstest]
    #[case("v1")]
    #[case("apps,batch")]
    #[case("apps/v1,v2")]
    #[case("apps/v1/")]
    #[case("v1/Pod,")]
    #[case("/v1/Pod")]
    #[case("apps/v1/Deployment/scale")]
    fn invalid_entries_are_errors(#[case] text: &str) {
        assert_eq!(text.parse::<SkippedApis>(), Err(SkippedApisError(text.to_owned())));
    }

    #[rstest]
    #[case::whole_names(&["kube-.*"], "my-kube-system", false)]
    #[case::default(&[DEFAULT_SKIPPED_NAMESPACES], "kube-system", true)]
    #[case::several(&["a", "b|c"], "c", true)]
    #[case::alternatives_are_whole_too(&["b|c"], "cc", false)]
    #[case::none(&[], "kube-system", false)]
    fn whole_namespace_names_match(#[case] expressions: &[&str], #[case] namespace: &str, #[case] expected: bool) {
        assert_eq!(SkippedNamespaces::new(expressions).expect("valid").contains(namespace), expected);
    }
}
