//! The members of a list, as the source of its objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_members::Member;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use http::HeaderValue;
use serde_json::Value;

use crate::all_clusters::item::Item;
use crate::all_clusters::member::{Collection, MemberError, MemberPage, PageStart};
use crate::all_clusters::object::composite_version;
use crate::composite::CompositeVersion;
use crate::fleetwide::warning;
use crate::merged::list::{Page, Part, Source};
use crate::merged::{Heading, MissingCluster};
use crate::{BoxError, Error};

/// Number of members read ahead by a list without a limit.
const MEMBERS_AHEAD: usize = 4;

/// The members of a list.
pub(super) struct LiveMembers {
    pub(super) collection: Arc<Collection>,
    pub(super) members: BTreeMap<ClusterName, Arc<Member>>,
    pub(super) version: CompositeVersion,
    /// First pages that are already read.
    pub(super) first_pages: BTreeMap<ClusterName, MemberPage>,
    pub(super) heading: Heading,
    pub(super) missing: Vec<MissingCluster>,
    pub(super) is_limited: bool,
}

/// Pages with the first object of each member that responded, and the errors of the others.
pub(super) struct FirstObjects {
    pub(super) pages: BTreeMap<ClusterName, MemberPage>,
    pub(super) errors: Vec<(ClusterName, MemberError)>,
}

/// Reads the first object of each member.
pub(super) async fn read_first_objects(
    collection: &Arc<Collection>,
    members: &BTreeMap<ClusterName, Arc<Member>>,
    start: impl Fn(&ClusterName) -> PageStart,
) -> FirstObjects {
    let requests: Vec<_> = members
        .iter()
        .map(|(cluster, member)| {
            let (cluster, page) = (cluster.clone(), collection.read_page(member, start(cluster), 1));
            page.map(move |page| (cluster, page)).boxed()
        })
        .collect();
    let mut first = FirstObjects { pages: BTreeMap::new(), errors: Vec::new() };
    for (cluster, page) in join_all(requests).await {
        match page {
            Ok(page) => drop(first.pages.insert(cluster, page)),
            Err(error) => first.errors.push((cluster, error)),
        }
    }
    first
}

/// Composite version of these pages.
pub(super) fn version_of(pages: &BTreeMap<ClusterName, MemberPage>) -> CompositeVersion {
    let mut version = CompositeVersion::default();
    for (cluster, page) in pages {
        version.set(cluster.as_str(), &page.version, None);
    }
    version
}

impl LiveMembers {
    /// Reads the next objects of a part.
    pub(super) fn read_page(
        &self,
        part: &Part,
        target_count: usize,
    ) -> BoxFuture<'static, Result<MemberPage, MemberError>> {
        let start = match part.after.as_str() {
            "" => PageStart::Exact(self.version.version(part.cluster.as_str()).unwrap_or_default().to_owned()),
            token => PageStart::After(token.to_owned()),
        };
        match self.members.get(&part.cluster) {
            Some(member) => self.collection.read_page(member, start, target_count),
            None => {
                let error = Error::ClusterNotFound(part.cluster.to_string());
                futures::future::ready(Err(MemberError::NoResponse(Box::new(error)))).boxed()
            }
        }
    }

    /// The members' own warnings, each of them once, and one for each missing member.
    pub(super) fn warnings(&self) -> Vec<HeaderValue> {
        let mut warnings: Vec<HeaderValue> = Vec::new();
        let member_warnings = self.first_pages.values().flat_map(|page| page.warnings.iter().cloned());
        for text in member_warnings.chain(self.missing.iter().map(|missing| warning(&missing.warning_text()))) {
            if !warnings.contains(&text) {
                warnings.push(text);
            }
        }
        warnings
    }
}

impl Source for LiveMembers {
    type Item = Item;

    fn read(&mut self, part: &Part, target_count: usize) -> BoxFuture<'static, Result<Page<Item>, BoxError>> {
        let page = |page: MemberPage| Page { items: page.items, next: page.next, end: None };
        if let Some(first) = self.first_pages.remove(&part.cluster) {
            return futures::future::ready(Ok(page(first))).boxed();
        }
        self.read_page(part, target_count).map(move |read| read.map(page).map_err(BoxError::from)).boxed()
    }

    fn clusters_ahead(&self) -> usize {
        if self.is_limited { 0 } else { MEMBERS_AHEAD }
    }

    fn encoded_length(&self, _item: &Item) -> usize {
        0
    }

    fn write(&mut self, item: &Item, out: &mut Vec<u8>) -> Result<(), Error> {
        let version = item.own_version().map(|member_version| composite_version(&item.cluster, &member_version));
        out.extend_from_slice(&item.encode(self.collection.shape, &mut self.heading, version.as_deref())?);
        Ok(())
    }

    /// Omits the part of a member that cannot be read. With a limit, the page ends before this part, and the request
    /// for the next page reports the error. Without a limit, the list reports the member in `incompleteClusters`.
    fn omit_part(&mut self, part: &Part, error: BoxError) -> Result<(), BoxError> {
        tracing::debug!(cluster = %part.cluster, %error, "cannot read a member's part of a list; it is omitted");
        if !self.is_limited {
            self.missing.push(MissingCluster { cluster: part.cluster.clone(), reason: error.to_string() });
        }
        Ok(())
    }

    fn trailing_fields(&self, mut metadata: Value) -> Value {
        if !self.missing.is_empty() {
            let mut missing: Vec<&MissingCluster> = self.missing.iter().collect();
            missing.sort_by(|left, right| left.cluster.cmp(&right.cluster));
            metadata["incompleteClusters"] = missing.into_iter().map(MissingCluster::metadata_entry).collect();
        }
        self.heading.trailing_fields(self.collection.shape, metadata)
    }
}
