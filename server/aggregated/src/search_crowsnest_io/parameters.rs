//! Query parameters of the search API. A missing or invalid one is refused with 400, and the cause names it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::RecordKey;
use crowsnest_search::{Cursor, SearchRequest};

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

    /// A boolean that is false if the parameter is absent.
    pub(super) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        self.boolean(name, false)
    }

    /// A boolean: `true`, `1` or no value, or `false` or `0`. Case is ignored, because the Python client sends `watch=True`.
    pub(super) fn boolean(&self, name: &str, default: bool) -> Result<bool, ApiError> {
        let Some(text) = self.get(name) else { return Ok(default) };
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(invalid_parameter(name, text, "expected true or false")),
        }
    }

    /// A number; `None` if the parameter is absent.
    pub(super) fn number(&self, name: &str) -> Result<Option<usize>, ApiError> {
        let parse = |text: &str| text.parse::<usize>().map_err(|_| invalid_parameter(name, text, "expected a number"));
        self.get(name).map(parse).transpose()
    }

    /// A number within limits; `None` if the parameter is absent.
    pub(super) fn number_in(&self, name: &str, limits: RangeInclusive<usize>) -> Result<Option<usize>, ApiError> {
        let parse = |text: &str| {
            let number = text.parse::<usize>().ok().filter(|number| limits.contains(number));
            let expected = || format!("expected a number from {} to {}", limits.start(), limits.end());
            number.ok_or_else(|| invalid_parameter(name, text, expected()))
        };
        self.get(name).map(parse).transpose()
    }

    pub(super) fn required(&self, name: &str) -> Result<&str, ApiError> {
        let value = self.get(name).filter(|value| !value.is_empty());
        value.ok_or_else(|| {
            let message = format!("the parameter {name} is missing");
            ApiError::bad_request(message).with_causes(&[FieldError::required(name, "")])
        })
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
        if let Some(cursor) = self.get("cursor").filter(|cursor| !cursor.is_empty()) {
            let parsed = cursor.parse::<Cursor>().map_err(|error| invalid_parameter("cursor", cursor, error))?;
            request.page.after = Some(parsed.0);
        }
        if let Some(facets) = self.get("facets") {
            let names = facets.split(',').filter(|name| !name.is_empty());
            request.set_facets(names).map_err(|reason| invalid_parameter("facets", facets, reason))?;
        }
        if let Some(sums) = self.get("sums") {
            let names = sums.split(',').filter(|name| !name.is_empty());
            request.set_sums(names).map_err(|reason| invalid_parameter("sums", sums, reason))?;
        }
        Ok(request)
    }

    /// Requested columns of hits, in addition to their fields.
    pub(super) fn columns(&self) -> Result<Columns, ApiError> {
        Columns::parse(self.get("columns"))
    }

    pub(super) fn cluster(&self, name: &str) -> Result<ClusterName, ApiError> {
        let text = self.required(name)?;
        ClusterName::parse(text).map_err(|error| invalid_parameter(name, text, error))
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

/// 400 for an invalid value of a parameter.
pub(super) fn invalid_parameter(name: &str, value: &str, reason: impl Display) -> ApiError {
    let reason = reason.to_string();
    ApiError::bad_request(format!("invalid {name}={value:?}: {reason}"))
        .with_causes(&[FieldError::invalid(name, value, reason)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Status code, reason and field of the cause, and message of an error.
    fn parts(error: &ApiError) -> (u16, &str, &str, &str) {
        let causes = error.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
        let [cause] = causes else { panic!("{} causes", causes.len()) };
        (error.code, &cause.reason, &cause.field, &error.message)
    }

    #[rstest]
    #[case::absent("", Ok(None))]
    #[case::least("depth=1", Ok(Some(1)))]
    #[case::most("depth=8", Ok(Some(8)))]
    #[case::too_small("depth=0", Err("invalid depth=\"0\": expected a number from 1 to 8"))]
    #[case::too_large("depth=100", Err("invalid depth=\"100\": expected a number from 1 to 8"))]
    #[case::negative("depth=-1", Err("invalid depth=\"-1\": expected a number from 1 to 8"))]
    #[case::too_long(
        "depth=99999999999999999999",
        Err("invalid depth=\"99999999999999999999\": expected a number from 1 to 8")
    )]
    #[case::no_number("depth=x", Err("invalid depth=\"x\": expected a number from 1 to 8"))]
    #[case::empty("depth=", Err("invalid depth=\"\": expected a number from 1 to 8"))]
    fn numbers_have_limits(#[case] query: &str, #[case] expected: Result<Option<usize>, &str>) {
        let query = Query::parse(Some(query));
        match (Parameters::new(&query).number_in("depth", 1..=8), expected) {
            (Err(error), Err(message)) => assert_eq!(parts(&error), (400, "FieldValueInvalid", "depth", message)),
            (number, expected) => assert_eq!(number.ok(), expected.ok()),
        }
    }

    #[rstest]
    #[case::absent("", Some(false))]
    #[case::without_a_value("shortest", Some(true))]
    #[case::set("shortest=true", Some(true))]
    #[case::one("shortest=1", Some(true))]
    #[case::unset("shortest=false", Some(false))]
    #[case::zero("shortest=0", Some(false))]
    #[case::capitalized("shortest=True", Some(true))]
    #[case::upper_case("shortest=FALSE", Some(false))]
    #[case::another_word("shortest=yes", None)]
    fn flags_are_true_or_false(#[case] query: &str, #[case] expected: Option<bool>) {
        let query = Query::parse(Some(query));
        match (Parameters::new(&query).flag("shortest"), expected) {
            (Err(error), None) => {
                let message = "invalid shortest=\"yes\": expected true or false";
                assert_eq!(parts(&error), (400, "FieldValueInvalid", "shortest", message));
            }
            (flag, expected) => assert_eq!(flag.ok(), expected),
        }
    }

    #[rstest]
    #[case::missing("", "p", "FieldValueRequired", "the parameter p is missing")]
    #[case::empty("p=", "p", "FieldValueRequired", "the parameter p is missing")]
    #[case::cursor("cursor=x", "cursor", "FieldValueInvalid", "invalid cursor=\"x\": ")]
    #[case::facets("facets=kind,color", "facets", "FieldValueInvalid", "invalid facets=\"kind,color\": ")]
    #[case::sums("sums=color", "sums", "FieldValueInvalid", "invalid sums=\"color\": ")]
    #[case::limit("limit=x", "limit", "FieldValueInvalid", "invalid limit=\"x\": expected a number")]
    fn causes_name_parameters(#[case] query: &str, #[case] name: &str, #[case] reason: &str, #[case] message: &str) {
        let query = Query::parse(Some(query));
        let parameters = Parameters::new(&query);
        let error = match name {
            "p" => parameters.required("p").map(drop),
            _ => parameters.search(&UserInfo::default()).map(drop),
        };
        let error = error.unwrap_err();
        let (code, cause, field, found) = parts(&error);
        assert_eq!((code, cause, field), (400, reason, name));
        assert!(found.starts_with(message), "{found}");
    }
}
