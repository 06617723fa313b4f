//! Query parameters of the search API.

use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::RecordKey;
use crowsnest_search::{Cursor, SearchRequest};

use std::collections::BTreeMap;

use super::columns::Columns;

/// Default and maximum number of hits of one page.
const DEFAULT_PAGE_SIZE: usize = 50;
const MAX_PAGE_SIZE: usize = 5_000;

/// Query parameters, and the queries that `scope:` may name.
pub(super) struct Parameters<'q> {
    all: &'q Query,
    pub(super) scopes: BTreeMap<String, String>,
}

impl<'q> Parameters<'q> {
    pub(super) fn new(all: &'q Query) -> Self {
        Self { all, scopes: BTreeMap::new() }
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.all.first(name)
    }

    /// True if the query may contain `scope:`.
    pub(super) fn names_scope(&self) -> bool {
        self.get("q").is_some_and(|query| query.to_ascii_lowercase().contains("scope:"))
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some("true" | "1" | ""))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<usize>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number =
            text.parse().map_err(|_| ApiError::bad_request(format!("invalid {name}={text:?}: expected a number")))?;
        Ok(Some(number))
    }

    pub(super) fn required(&self, name: &str) -> Result<&str, ApiError> {
        let value = self.get(name).filter(|value| !value.is_empty());
        value.ok_or_else(|| ApiError::bad_request(format!("the parameter {name} is missing")))
    }

    /// The search of the parameters, such as `q`, `limit` and `cursor`.
    pub(super) fn search(&self, caller: &UserInfo) -> Result<SearchRequest, ApiError> {
        self.search_with(caller, &Columns::default())
    }

    /// The search of the parameters, including manifests if one of these columns is read from them.
    pub(super) fn search_with(&self, caller: &UserInfo, columns: &Columns) -> Result<SearchRequest, ApiError> {
        let mut request = SearchRequest::new(self.get("q").unwrap_or_default(), caller.clone());
        request.scopes = self.scopes.clone();
        request.include_manifests = columns.read_manifests();
        request.page.limit = Some(self.number("limit")?.unwrap_or(DEFAULT_PAGE_SIZE).min(MAX_PAGE_SIZE));
        let cursor = self.get("cursor").filter(|cursor| !cursor.is_empty()).map(str::parse::<Cursor>).transpose();
        request.page.after = cursor.map_err(|error| ApiError::bad_request(error.to_string()))?.map(|cursor| cursor.0);
        if let Some(facets) = self.get("facets") {
            request.set_facets(facets.split(',').filter(|name| !name.is_empty())).map_err(ApiError::bad_request)?;
        }
        if let Some(sums) = self.get("sums") {
            request.set_sums(sums.split(',').filter(|name| !name.is_empty())).map_err(ApiError::bad_request)?;
        }
        Ok(request)
    }

    /// Requested columns of hits, in addition to their fields.
    pub(super) fn columns(&self) -> Result<Columns, ApiError> {
        Columns::parse(self.get("columns"))
    }

    pub(super) fn cluster(&self, name: &str) -> Result<ClusterName, ApiError> {
        let text = self.required(name)?;
        ClusterName::parse(text).map_err(|error| ApiError::bad_request(format!("{name}={text:?}: {error}")))
    }

    /// `cluster`, `apiVersion`, `resource`, `namespace` and `name` of an object, as a hit has them.
    pub(super) fn object(&self) -> Result<RecordKey, ApiError> {
        let api_version = self.required("apiVersion")?;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = Gvr::new(group, version, self.required("resource")?);
        let namespace = self.get("namespace").unwrap_or_default();
        Ok(RecordKey::new(self.cluster("cluster")?, resource, namespace, self.required("name")?))
    }
}
