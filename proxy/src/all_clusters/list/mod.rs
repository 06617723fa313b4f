//! Lists of all members.
//!
//! Before the response begins, the first object of each member is requested: this determines the versions that all pages
//! show and the members to warn about. The rest is streamed member by member.

mod source;
mod token;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::Query;
use crowsnest_members::Member;
use http::{HeaderValue, Response, StatusCode, header};

use self::source::{FirstObjects, LiveMembers, read_first_objects, version_of};
use self::token::expired_token_error;
use super::member::{Collection, MemberError, PageStart};
use crate::composite::{CompositeVersion, Continue, InvalidContinueToken, ListId, Snapshot};
use crate::merged::list::{ListParameters, Listing, Part};
use crate::merged::{Heading, MissingCluster};
use crate::native::NativePath;
use crate::options::ListOptions;
use crate::table::Shape;
use crate::{Body, BodySource, Error, Proxy};

impl Proxy {
    pub(super) async fn list_all_clusters(
        &self,
        native: &NativePath,
        query: &Query,
        collection: Collection,
    ) -> Result<Response<Body>, Error> {
        let limit = ListOptions::parse(query, false, true)?.limit;
        let (list, shape) = (list_id(native, query), collection.shape);
        let [version, version_match, text] =
            ["resourceVersion", "resourceVersionMatch", "continue"].map(|name| query.get(name).unwrap_or_default());
        let token = Continue::decode(text, list)?;
        if token.is_none() && !text.is_empty() {
            return Err(InvalidContinueToken.into());
        }
        let snapshot = Snapshot::from_parameters(version, version_match, limit.is_some(), token)?;
        let members = self.members_of(&collection.caller).into_iter();
        let collection = Arc::new(collection);
        let members: BTreeMap<ClusterName, Arc<Member>> =
            members.map(|member| (member.name().clone(), member)).collect();
        let (source, parts) = match snapshot {
            Snapshot::Rest(token) => prepare_later_page(collection, members, &token, limit, list).await?,
            snapshot => match prepare_first_page(collection, members, snapshot, limit.is_some()).await? {
                FirstPage::Listing(source, parts) => (*source, parts),
                FirstPage::Refused(response) => return Ok(response),
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

fn list_id(native: &NativePath, query: &Query) -> ListId {
    let selectors = ["labelSelector", "fieldSelector"].map(|name| query.get(name).unwrap_or_default());
    ListId::new(&("clusters/*", &native.resource, &native.namespace, selectors))
}

/// Result of the requests for the first page.
enum FirstPage {
    Listing(Box<LiveMembers>, VecDeque<Part>),
    /// No member returned a list. Contains the error response of the first member.
    Refused(Response<Body>),
}

/// Requests the first object of each member and prepares the first page of a list.
async fn prepare_first_page(
    collection: Arc<Collection>,
    mut members: BTreeMap<ClusterName, Arc<Member>>,
    snapshot: Snapshot,
    is_limited: bool,
) -> Result<FirstPage, Error> {
    if let Snapshot::Exact(version) = &snapshot {
        if version.has_leaving_cluster() || version.clusters().any(|cluster| !has_member(&members, cluster)) {
            return Err(Error::Expired);
        }
        // The snapshot lacks clusters that joined later.
        members.retain(|cluster, _| version.includes(cluster.as_str()));
    }
    let start = |cluster: &ClusterName| match &snapshot {
        Snapshot::Exact(version) => PageStart::Exact(version.version(cluster.as_str()).unwrap_or_default().to_owned()),
        Snapshot::NotOlderThan(version) => match version.version(cluster.as_str()) {
            Some(version) if !matches!(version, "" | "0") => PageStart::NotOlderThan(version.to_owned()),
            _ => PageStart::Latest,
        },
        Snapshot::Latest | Snapshot::Rest(_) => PageStart::Latest,
    };
    let FirstObjects { pages, errors } = read_first_objects(&collection, &members, start).await;
    let is_expired = |error: &MemberError| error.status() == Some(StatusCode::GONE);
    if matches!(snapshot, Snapshot::Exact(_)) && errors.iter().any(|(_, error)| is_expired(error)) {
        return Err(Error::Expired);
    }
    let missing =
        errors.iter().map(|(cluster, error)| MissingCluster { cluster: cluster.clone(), reason: error.to_string() });
    let missing = missing.collect();
    if pages.is_empty()
        && let Some((_, error)) = errors.into_iter().next()
    {
        return error.into_response().map(FirstPage::Refused);
    }
    let parts = pages.iter().filter(|(_, page)| !page.items.is_empty() || page.next.is_some());
    let parts = parts.map(|(cluster, _)| Part::all(cluster.clone())).collect();
    let source = LiveMembers {
        version: version_of(&pages),
        heading: pages.values().next().map(|page| page.heading.clone()).unwrap_or_default(),
        first_pages: pages,
        collection,
        members,
        missing,
        is_limited,
    };
    Ok(FirstPage::Listing(Box::new(source), parts))
}

/// Prepares a later page: the rest of the snapshot that the first page showed.
async fn prepare_later_page(
    collection: Arc<Collection>,
    members: BTreeMap<ClusterName, Arc<Member>>,
    token: &Continue,
    limit: Option<usize>,
    list: ListId,
) -> Result<(LiveMembers, VecDeque<Part>), Error> {
    let version = CompositeVersion::decode(&token.rv);
    // The remaining clusters. One that left after all its objects were sent is not needed.
    let clusters = version.clusters().filter(|cluster| *cluster >= token.cluster.as_str());
    let clusters: Vec<Option<ClusterName>> =
        clusters.map(|cluster| ClusterName::parse(cluster).ok().filter(|name| members.contains_key(name))).collect();
    let Some(clusters) = clusters.into_iter().collect::<Option<Vec<ClusterName>>>() else {
        return Err(expired_token_error(&collection, &members, token, None, list).await);
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
        first_pages: BTreeMap::new(),
        heading: Heading::default(),
        missing: Vec::new(),
        is_limited: limit.is_some(),
    };
    if let Some(part) = parts.front() {
        match source.read_page(part, limit.unwrap_or(usize::MAX)).await {
            Ok(page) => {
                source.heading = page.heading.clone();
                source.first_pages.insert(part.cluster.clone(), page);
            }
            // Without the rest of this member, the snapshot cannot be shown completely.
            Err(error) => {
                return Err(expired_token_error(&source.collection, &source.members, token, Some(error), list).await);
            }
        }
    }
    Ok((source, parts))
}

fn has_member(members: &BTreeMap<ClusterName, Arc<Member>>, cluster: &str) -> bool {
    ClusterName::parse(cluster).is_ok_and(|name| members.contains_key(&name))
}
