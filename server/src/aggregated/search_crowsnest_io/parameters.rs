//! Parameters of a request, decoded and read as what they are.

use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::RecordKey;
use crowsnest_index::search::{Cursor, SearchRequest};

use std::collections::BTreeMap;

use super::columns::Columns;
use crate::aggregated::reply::Failure;

/// Hits of one page when nothing is said, and at most.
const PAGE: usize = 50;
const LARGEST_PAGE: usize = 5_000;

/// Decoded query parameters, in order, and the queries that `scope:` may name.
pub(super) struct Parameters {
    all: Query,
    pub(super) scopes: BTreeMap<String, String>,
}

impl Parameters {
    pub(super) fn read(query: &str) -> Self {
        Self { all: Query::parse(Some(query)), scopes: BTreeMap::new() }
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.all.first(name)
    }

    /// Whether the query says `scope:` somewhere.
    pub(super) fn names_scope(&self) -> bool {
        self.get("q").is_some_and(|query| query.to_ascii_lowercase().contains("scope:"))
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some("true" | "1" | ""))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<usize>, Failure> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.parse().map_err(|_| Failure::bad_request(format!("{name}={text:?} is no number")))?;
        Ok(Some(number))
    }

    pub(super) fn wanted(&self, name: &str) -> Result<&str, Failure> {
        let value = self.get(name).filter(|value| !value.is_empty());
        value.ok_or_else(|| Failure::bad_request(format!("the parameter {name} is missing")))
    }

    /// The question, with the page it asks for.
    pub(super) fn question(&self, caller: &UserInfo) -> Result<SearchRequest, Failure> {
        self.question_with(caller, &Columns::default())
    }

    /// The same, with what these columns of its hits need.
    pub(super) fn question_with(&self, caller: &UserInfo, columns: &Columns) -> Result<SearchRequest, Failure> {
        let mut request = SearchRequest::new(self.get("q").unwrap_or_default(), caller.clone());
        request.scopes = self.scopes.clone();
        request.bodies = columns.read_manifests();
        request.limit = Some(self.number("limit")?.unwrap_or(PAGE).min(LARGEST_PAGE));
        let cursor = self.get("cursor").filter(|cursor| !cursor.is_empty()).map(str::parse::<Cursor>).transpose();
        request.after = cursor.map_err(|error| Failure::bad_request(error.to_string()))?.map(|cursor| cursor.0);
        if let Some(facets) = self.get("facets") {
            request.facet(facets.split(',').filter(|name| !name.is_empty())).map_err(Failure::bad_request)?;
        }
        Ok(request)
    }

    /// What hits are asked for beyond their fields.
    pub(super) fn columns(&self) -> Result<Columns, Failure> {
        Columns::read(self.get("columns"))
    }

    pub(super) fn cluster(&self, name: &str) -> Result<ClusterName, Failure> {
        let text = self.wanted(name)?;
        ClusterName::parse(text).map_err(|error| Failure::bad_request(format!("{name}={text:?}: {error}")))
    }

    /// `cluster`, `apiVersion`, `resource`, `namespace` and `name` of an object, as a hit has them.
    pub(super) fn object(&self) -> Result<RecordKey, Failure> {
        let api_version = self.wanted("apiVersion")?;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = Gvr::new(group, version, self.wanted("resource")?);
        let namespace = self.get("namespace").unwrap_or_default();
        Ok(RecordKey::new(self.cluster("cluster")?, resource, namespace, self.wanted("name")?))
    }
}
