//! Continue tokens whose snapshot a member no longer keeps.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_members::Member;

use super::source::{FirstObjects, read_first_objects};
use crate::Error;
use crate::all_clusters::member::{Collection, MemberError, PageStart};
use crate::composite::{CompositeVersion, Continue, ListId};

/// The error for a token whose snapshot is no longer available, with a token for the rest of the list in its current state.
/// `error` is that of the member in which the list would continue; its response may contain a new token of the member.
pub(super) async fn expired_token_error(
    collection: &Arc<Collection>,
    members: &BTreeMap<ClusterName, Arc<Member>>,
    token: &Continue,
    error: Option<MemberError>,
    list: ListId,
) -> Error {
    let new_token = match error {
        Some(MemberError::Response(error)) => error.token,
        _ => None,
    };
    let mut remaining = members.clone();
    remaining.retain(|cluster, _| cluster.as_str() >= token.cluster.as_str());
    let FirstObjects { pages, .. } = read_first_objects(collection, &remaining, |_| PageStart::Latest).await;
    let token =
        renew_token(token, new_token, &pages.iter().map(|(name, page)| (name, page.version.as_str())).collect(), list);
    Error::ExpiredContinue(token.map(|token| token.encode()).unwrap_or_default())
}

/// Token for the rest of a list in the current state. `new_token` is the member's new token; `current_versions` are those
/// of the remaining members that responded. None if there is no position to continue from.
fn renew_token(
    token: &Continue,
    new_token: Option<String>,
    current_versions: &BTreeMap<&ClusterName, &str>,
    list: ListId,
) -> Option<Continue> {
    let mut version = CompositeVersion::decode(&token.rv);
    let old: Vec<String> =
        version.clusters().filter(|name| *name >= token.cluster.as_str()).map(str::to_owned).collect();
    old.iter().for_each(|cluster| version.remove(cluster));
    for (cluster, member_version) in current_versions {
        version.set(cluster.as_str(), member_version, None);
    }
    let mut names = current_versions.keys().map(|cluster| cluster.as_str());
    let first = names.next()?;
    let (cluster, after) = match (first == token.cluster, new_token) {
        (true, Some(new_token)) => (first, new_token),
        // No object of this member was sent.
        (true, None) if token.after().is_empty() => (first, String::new()),
        (true, None) => return None,
        (false, _) => (first, String::new()),
    };
    Some(Continue::new(&version.encode(), cluster, &after, list))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token in m2 of a list of m1, m2 and m3.
    #[rstest::rstest]
    #[case::all_respond_with_a_token("t", Some("u"), &[("m2", "9"), ("m3", "9")], Some(("m2", "u", "1 9 9")))]
    #[case::snapshot_of_a_member_without_sent_objects("", None, &[("m2", "9"), ("m3", "9")], Some(("m2", "", "1 9 9")))]
    #[case::no_position("t", None, &[("m2", "9"), ("m3", "9")], None)]
    #[case::the_member_left("t", None, &[("m3", "9")], Some(("m3", "", "1 - 9")))]
    #[case::another_member_left("t", Some("u"), &[("m2", "9")], Some(("m2", "u", "1 9 -")))]
    #[case::nothing_remains("t", None, &[], None)]
    fn expired_tokens_are_renewed(
        #[case] after: &str,
        #[case] new_token: Option<&str>,
        #[case] current_versions: &[(&str, &str)],
        #[case] expected: Option<(&str, &str, &str)>,
    ) {
        let list = ListId::new(&"pods");
        let mut version = CompositeVersion::default();
        ["m1", "m2", "m3"]
            .iter()
            .zip(["1", "2", "3"])
            .for_each(|(cluster, member_version)| version.set(cluster, member_version, None));
        let token = Continue::new(&version.encode(), "m2", after, list);
        let names: Vec<ClusterName> =
            current_versions.iter().map(|(cluster, _)| ClusterName::parse(cluster).unwrap()).collect();
        let current_versions = names.iter().zip(current_versions.iter().map(|(_, version)| *version)).collect();
        let renewed = renew_token(&token, new_token.map(str::to_owned), &current_versions, list).map(|token| {
            let version = CompositeVersion::decode(&token.rv);
            let version_of = |cluster| version.version(cluster).unwrap_or("-").to_owned();
            (token.cluster.clone(), token.after(), ["m1", "m2", "m3"].map(version_of).join(" "))
        });
        let expected =
            expected.map(|(cluster, after, versions)| (cluster.to_owned(), after.to_owned(), versions.to_owned()));
        assert_eq!(renewed, expected);
    }
}
