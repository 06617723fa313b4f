//! Lists of all members.
//!
//! Before the response begins, the first object of each member is requested: this determines the versions that all pages
//! show and the members to warn of. The rest is streamed member by member.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::Query;
use crowsnest_members::Member;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::Value;

use super::item::Item;
use super::member::{Collection, MemberPage, Refusal, Start};
use super::object::composite_version;
use crate::composite::{CompositeVersion, Continue, InvalidToken, ListId, Snapshot};
use crate::fleetwide::warning;
use crate::merged::list::{ListParameters, Listing, Page, Part, Source};
use crate::merged::{Heading, Missing};
use crate::native::Native;
use crate::options::ListOptions;
use crate::table::{Content, Shape};
use crate::{Body, BoxError, Caller, Error, Pieces, Proxy};

/// Number of members read ahead by a list without a limit.
const MEMBERS_AHEAD: usize = 4;

/// The members of a list.
struct LiveMembers {
    collection: Arc<Collection>,
    members: BTreeMap<ClusterName, Arc<Member>>,
    version: CompositeVersion,
    /// First pages that are already read.
    begun: BTreeMap<ClusterName, MemberPage>,
    heading: Heading,
    missing: Vec<Missing>,
    is_limited: bool,
}

/// The members that answered, and why the others did not.
struct Heads {
    pages: BTreeMap<ClusterName, MemberPage>,
    refusals: Vec<(ClusterName, Refusal)>,
}

impl Proxy {
    pub(super) async fn list_everywhere(
        &self,
        caller: &Caller,
        native: &Native,
        headers: &HeaderMap,
        raw: Option<&str>,
    ) -> Result<Response<Body>, Error> {
        let query = Query::parse(raw);
        let shape = Shape::of(headers, &query, Content::List)?;
        let limit = ListOptions::parse(&query, false, true)?.limit;
        let list = list_id(native, &query);
        let [version, matching, text] =
            ["resourceVersion", "resourceVersionMatch", "continue"].map(|name| query.get(name).unwrap_or_default());
        let token = Continue::decode(text, list)?;
        if token.is_none() && !text.is_empty() {
            return Err(InvalidToken.into());
        }
        let snapshot = Snapshot::of(version, matching, limit.is_some(), token)?;
        let namespace = Some(native.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let path = native.resource.path(namespace);
        let collection = Arc::new(Collection::new(self, caller, path, raw, shape));
        let members = self.members_of(caller).into_iter();
        let members: BTreeMap<ClusterName, Arc<Member>> =
            members.map(|member| (member.name().clone(), member)).collect();
        let (source, parts) = match snapshot {
            Snapshot::Rest(token) => rest(collection, members, &token, limit, list).await?,
            snapshot => match first(collection, members, snapshot, limit.is_some()).await? {
                Begun::Listing(source, parts) => (*source, parts),
                Begun::Refused(response) => return Ok(response),
            },
        };
        let mut response = Response::new(());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for text in source.warnings() {
            headers.append(header::WARNING, text);
        }
        let (is_table, version) = (matches!(shape, Shape::Table(_)), source.version.clone());
        let listing = Listing::new(source, ListParameters { is_table, version, list, parts, limit });
        Ok(response.map(|()| listing.into_body()))
    }
}

fn list_id(native: &Native, query: &Query) -> ListId {
    let selectors = ["labelSelector", "fieldSelector"].map(|name| query.get(name).unwrap_or_default());
    ListId::of(&("clusters/*", &native.resource, &native.namespace, selectors))
}

enum Begun {
    Listing(Box<LiveMembers>, VecDeque<Part>),
    /// No member sends a list.
    Refused(Response<Body>),
}

/// The first page of a list.
async fn first(
    collection: Arc<Collection>,
    mut members: BTreeMap<ClusterName, Arc<Member>>,
    snapshot: Snapshot,
    is_limited: bool,
) -> Result<Begun, Error> {
    if let Snapshot::Exact(version) = &snapshot {
        if version.is_leaving() || version.clusters().any(|cluster| !has(&members, cluster)) {
            return Err(Error::Expired);
        }
        // The snapshot lacks clusters that joined later.
        members.retain(|cluster, _| version.includes(cluster.as_str()));
    }
    let start = |cluster: &ClusterName| match &snapshot {
        Snapshot::Exact(version) => Start::Exact(version.version(cluster.as_str()).unwrap_or_default().to_owned()),
        Snapshot::NotOlderThan(version) => match version.version(cluster.as_str()) {
            Some(version) if !matches!(version, "" | "0") => Start::NotOlderThan(version.to_owned()),
            _ => Start::Latest,
        },
        Snapshot::Latest | Snapshot::Rest(_) => Start::Latest,
    };
    let Heads { pages, refusals } = heads(&collection, &members, start).await;
    let is_expired = |refusal: &Refusal| refusal.status() == Some(StatusCode::GONE);
    if matches!(snapshot, Snapshot::Exact(_)) && refusals.iter().any(|(_, refusal)| is_expired(refusal)) {
        return Err(Error::Expired);
    }
    let missing =
        refusals.iter().map(|(cluster, refusal)| Missing { cluster: cluster.clone(), reason: refusal.to_string() });
    let missing = missing.collect();
    if pages.is_empty()
        && let Some((_, refusal)) = refusals.into_iter().next()
    {
        return refusal.into_response().map(Begun::Refused);
    }
    let parts = pages.iter().filter(|(_, page)| !page.items.is_empty() || page.next.is_some());
    let parts = parts.map(|(cluster, _)| Part::all(cluster.clone())).collect();
    let source = LiveMembers {
        version: version_of(&pages),
        heading: pages.values().next().map(|page| page.heading.clone()).unwrap_or_default(),
        begun: pages,
        collection,
        members,
        missing,
        is_limited,
    };
    Ok(Begun::Listing(Box::new(source), parts))
}

/// A later page: the rest of the snapshot that the first page showed.
async fn rest(
    collection: Arc<Collection>,
    members: BTreeMap<ClusterName, Arc<Member>>,
    token: &Continue,
    limit: Option<usize>,
    list: ListId,
) -> Result<(LiveMembers, VecDeque<Part>), Error> {
    let version = CompositeVersion::decode(&token.rv);
    // A cluster that left after all its pages were sent does not matter.
    let labels = version.clusters().filter(|cluster| *cluster >= token.cluster.as_str());
    let clusters: Vec<Option<ClusterName>> =
        labels.map(|cluster| ClusterName::parse(cluster).ok().filter(|name| members.contains_key(name))).collect();
    let Some(clusters) = clusters.into_iter().collect::<Option<Vec<ClusterName>>>() else {
        return Err(expired(&collection, &members, token, None, list).await);
    };
    let after = |cluster: &ClusterName| match cluster.as_str() == token.cluster {
        true => token.after(),
        false => String::new(),
    };
    let parts: VecDeque<Part> = clusters.into_iter().map(|cluster| Part { after: after(&cluster), cluster }).collect();
    let mut source = LiveMembers {
        collection,
        members,
        version,
        begun: BTreeMap::new(),
        heading: Heading::default(),
        missing: Vec::new(),
        is_limited: limit.is_some(),
    };
    if let Some(part) = parts.front() {
        match source.page(part, limit.unwrap_or(usize::MAX)).await {
            Ok(page) => {
                source.heading = page.heading.clone();
                source.begun.insert(part.cluster.clone(), page);
            }
            // The snapshot cannot be shown completely, for any reason.
            Err(refusal) => {
                return Err(expired(&source.collection, &source.members, token, Some(refusal), list).await);
            }
        }
    }
    Ok((source, parts))
}

/// The error of a token whose snapshot cannot be shown any longer, with a token for the rest in its current state. If the
/// member of the token cannot continue, that is the next member.
async fn expired(
    collection: &Arc<Collection>,
    members: &BTreeMap<ClusterName, Arc<Member>>,
    token: &Continue,
    refusal: Option<Refusal>,
    list: ListId,
) -> Error {
    let own = match refusal {
        Some(Refusal::Answered(answer)) => answer.token,
        _ => None,
    };
    let mut remaining = members.clone();
    remaining.retain(|cluster, _| cluster.as_str() >= token.cluster.as_str());
    let Heads { pages, .. } = heads(collection, &remaining, |_| Start::Latest).await;
    let token = renewed(token, own, &pages.iter().map(|(name, page)| (name, page.version.as_str())).collect(), list);
    Error::ExpiredContinue(token.map(|token| token.encode()).unwrap_or_default())
}

/// Token for the rest of a list in the current state: `now` are the versions of the remaining members that answer. None if
/// there is no position to continue from.
fn renewed(
    token: &Continue,
    own: Option<String>,
    now: &BTreeMap<&ClusterName, &str>,
    list: ListId,
) -> Option<Continue> {
    let mut version = CompositeVersion::decode(&token.rv);
    let old: Vec<String> =
        version.clusters().filter(|name| *name >= token.cluster.as_str()).map(str::to_owned).collect();
    old.iter().for_each(|cluster| version.forget(cluster));
    for (cluster, own) in now {
        version.set(cluster.as_str(), own, None);
    }
    let mut names = now.keys().map(|cluster| cluster.as_str());
    let first = names.next()?;
    let (cluster, after) = match (first == token.cluster, own) {
        (true, Some(own)) => (first, own),
        // No object of this member was sent.
        (true, None) if token.after().is_empty() => (first, String::new()),
        (true, None) => return None,
        (false, _) => (first, String::new()),
    };
    Some(Continue::at(&version.encode(), cluster, &after, list))
}

fn has(members: &BTreeMap<ClusterName, Arc<Member>>, cluster: &str) -> bool {
    ClusterName::parse(cluster).is_ok_and(|name| members.contains_key(&name))
}

fn version_of(pages: &BTreeMap<ClusterName, MemberPage>) -> CompositeVersion {
    let mut version = CompositeVersion::default();
    for (cluster, page) in pages {
        version.set(cluster.as_str(), &page.version, None);
    }
    version
}

/// The first object of each member.
async fn heads(
    collection: &Arc<Collection>,
    members: &BTreeMap<ClusterName, Arc<Member>>,
    start: impl Fn(&ClusterName) -> Start,
) -> Heads {
    let requests: Vec<_> = members
        .iter()
        .map(|(cluster, member)| {
            let (cluster, page) = (cluster.clone(), collection.page(member, start(cluster), 1));
            page.map(move |page| (cluster, page)).boxed()
        })
        .collect();
    let mut heads = Heads { pages: BTreeMap::new(), refusals: Vec::new() };
    for (cluster, page) in join_all(requests).await {
        match page {
            Ok(page) => drop(heads.pages.insert(cluster, page)),
            Err(refusal) => heads.refusals.push((cluster, refusal)),
        }
    }
    heads
}

impl LiveMembers {
    fn page(&self, part: &Part, want: usize) -> BoxFuture<'static, Result<MemberPage, Refusal>> {
        let start = match part.after.as_str() {
            "" => Start::Exact(self.version.version(part.cluster.as_str()).unwrap_or_default().to_owned()),
            token => Start::After(token.to_owned()),
        };
        match self.members.get(&part.cluster) {
            Some(member) => self.collection.page(member, start, want),
            None => {
                let refusal = Error::ClusterNotFound(part.cluster.to_string());
                futures::future::ready(Err(Refusal::Failed(Box::new(refusal)))).boxed()
            }
        }
    }

    /// The members' own warnings, each of them once, and one for each missing member.
    fn warnings(&self) -> Vec<HeaderValue> {
        let mut warnings: Vec<HeaderValue> = Vec::new();
        let own = self.begun.values().flat_map(|page| page.warnings.iter().cloned());
        for text in own.chain(self.missing.iter().map(|missing| warning(&missing.text()))) {
            if !warnings.contains(&text) {
                warnings.push(text);
            }
        }
        warnings
    }
}

impl Source for LiveMembers {
    type Item = Item;

    fn read(&mut self, part: &Part, want: usize) -> BoxFuture<'static, Result<Page<Item>, BoxError>> {
        let page = |page: MemberPage| Page { items: page.items, next: page.next, end: None };
        if let Some(begun) = self.begun.remove(&part.cluster) {
            return futures::future::ready(Ok(page(begun))).boxed();
        }
        self.page(part, want).map(move |read| read.map(page).map_err(BoxError::from)).boxed()
    }

    fn clusters_ahead(&self) -> usize {
        if self.is_limited { 0 } else { MEMBERS_AHEAD }
    }

    fn length(&self, _items: &[Item]) -> usize {
        0
    }

    fn write(&mut self, item: &Item, out: &mut Vec<u8>) -> Result<(), Error> {
        let version = item.own_version().map(|own| composite_version(&item.cluster, &own));
        out.extend_from_slice(&item.encode(self.collection.shape, &mut self.heading, version.as_deref())?);
        Ok(())
    }

    /// A page with a limit ends before the part, and the request for the next page fails. A list without a limit names
    /// the member at its end.
    fn leave_out(&mut self, part: &Part, error: BoxError) -> Result<(), BoxError> {
        tracing::debug!(cluster = %part.cluster, %error, "a member's part of a list is left out");
        if !self.is_limited {
            self.missing.push(Missing { cluster: part.cluster.clone(), reason: error.to_string() });
        }
        Ok(())
    }

    fn tail(&self, mut metadata: Value) -> Value {
        if !self.missing.is_empty() {
            let mut missing: Vec<&Missing> = self.missing.iter().collect();
            missing.sort_by(|one, other| one.cluster.cmp(&other.cluster));
            metadata["incompleteClusters"] = missing.into_iter().map(Missing::meta).collect();
        }
        self.heading.tail(self.collection.shape, metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token in m2 of a list of m1, m2 and m3.
    #[rstest::rstest]
    #[case::all_answer_with_a_token("t", Some("u"), &[("m2", "9"), ("m3", "9")], Some(("m2", "u", "1 9 9")))]
    #[case::snapshot_of_a_member_that_is_not_begun("", None, &[("m2", "9"), ("m3", "9")], Some(("m2", "", "1 9 9")))]
    #[case::no_position("t", None, &[("m2", "9"), ("m3", "9")], None)]
    #[case::the_member_left("t", None, &[("m3", "9")], Some(("m3", "", "1 - 9")))]
    #[case::another_member_left("t", Some("u"), &[("m2", "9")], Some(("m2", "u", "1 9 -")))]
    #[case::nothing_remains("t", None, &[], None)]
    fn expired_tokens_are_renewed(
        #[case] after: &str,
        #[case] own: Option<&str>,
        #[case] now: &[(&str, &str)],
        #[case] expected: Option<(&str, &str, &str)>,
    ) {
        let list = ListId::of(&"pods");
        let mut version = CompositeVersion::default();
        ["m1", "m2", "m3"].iter().zip(["1", "2", "3"]).for_each(|(cluster, own)| version.set(cluster, own, None));
        let token = Continue::at(&version.encode(), "m2", after, list);
        let names: Vec<ClusterName> = now.iter().map(|(cluster, _)| ClusterName::parse(cluster).unwrap()).collect();
        let now = names.iter().zip(now.iter().map(|(_, version)| *version)).collect();
        let renewed = renewed(&token, own.map(str::to_owned), &now, list).map(|token| {
            let version = CompositeVersion::decode(&token.rv);
            let own = |cluster| version.version(cluster).unwrap_or("-").to_owned();
            (token.cluster.clone(), token.after(), ["m1", "m2", "m3"].map(own).join(" "))
        });
        let expected = expected.map(|(cluster, after, own)| (cluster.to_owned(), after.to_owned(), own.to_owned()));
        assert_eq!(renewed, expected);
    }
}
