//! Options of lists and watches (`metav1.ListOptions`), parsed and validated like kube-apiserver, with its
//! messages. Selectors remain text.

use std::num::IntErrorKind;

use crate::field::FieldError;

const VERSION_MATCH: &str = "resourceVersionMatch";
const INITIAL_EVENTS: &str = "sendInitialEvents";
const EXACT: &str = "Exact";
const NOT_OLDER_THAN: &str = "NotOlderThan";

/// The parsed options. Unset strings are empty, unset numbers 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    pub label_selector: String,
    pub field_selector: String,
    pub watch: bool,
    pub allow_watch_bookmarks: bool,
    pub resource_version: String,
    pub resource_version_match: String,
    pub timeout_seconds: i64,
    /// Page size; 0 or less means no limit.
    pub limit: i64,
    pub continue_token: String,
    pub send_initial_events: Option<bool>,
}

/// A parameter that must be an integer, but is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("strconv.ParseInt: parsing {text:?}: {reason}")]
pub struct ParseIntegerError {
    text: String,
    reason: &'static str,
}

/// Parses an integer of a query.
pub fn parse_integer(text: &str) -> Result<i64, ParseIntegerError> {
    text.parse().map_err(|error: std::num::ParseIntError| ParseIntegerError {
        text: text.to_owned(),
        reason: match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        },
    })
}

/// Parses a boolean of a query. A parameter without a value is true.
pub fn parse_boolean(text: &str) -> bool {
    !matches!(text.to_ascii_lowercase().as_str(), "false" | "0")
}

impl ListOptions {
    /// Parses the options of a query. `first` returns the first value of a parameter, or `None` if it is absent.
    pub fn parse<'q>(first: impl Fn(&str) -> Option<&'q str>) -> Result<Self, ParseIntegerError> {
        let text = |name: &str| first(name).unwrap_or_default().to_owned();
        let number = |name: &str| first(name).map_or(Ok(0), parse_integer);
        let flag = |name: &str| first(name).map(parse_boolean);
        Ok(Self {
            label_selector: text("labelSelector"),
            field_selector: text("fieldSelector"),
            watch: flag("watch").unwrap_or_default(),
            allow_watch_bookmarks: flag("allowWatchBookmarks").unwrap_or_default(),
            resource_version: text("resourceVersion"),
            resource_version_match: text(VERSION_MATCH),
            timeout_seconds: number("timeoutSeconds")?,
            limit: number("limit")?,
            continue_token: text("continue"),
            send_initial_events: flag(INITIAL_EVENTS),
        })
    }

    /// Page size, if limited.
    pub fn page_size(&self) -> Option<usize> {
        usize::try_from(self.limit).ok().filter(|limit| *limit > 0)
    }

    /// Validates the combination of options. `watch_list` is true if a watch may request initial events (feature gate
    /// WatchList).
    pub fn validate(&self, watch_list: bool) -> Vec<FieldError> {
        if self.watch { self.check_watch(watch_list) } else { self.check_list() }
    }

    fn check_list(&self) -> Vec<FieldError> {
        let version_match = self.resource_version_match.as_str();
        let mut errors = Vec::new();
        if !version_match.is_empty() {
            if self.resource_version.is_empty() {
                errors.push(forbidden(
                    VERSION_MATCH,
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                ));
            }
            if !self.continue_token.is_empty() {
                errors.push(forbidden(VERSION_MATCH, FORBIDDEN_WITH_CONTINUE));
            }
            if ![EXACT, NOT_OLDER_THAN].contains(&version_match) {
                errors.push(FieldError::not_supported(VERSION_MATCH, version_match, &[EXACT, NOT_OLDER_THAN, ""]));
            }
            if version_match == EXACT && self.resource_version == "0" {
                let text = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
                errors.push(forbidden(VERSION_MATCH, text));
            }
        }
        if self.send_initial_events.is_some() {
            errors.push(forbidden(INITIAL_EVENTS, "sendInitialEvents is forbidden for list"));
        }
        errors
    }

    fn check_watch(&self, watch_list: bool) -> Vec<FieldError> {
        let (version_match, has_initial_events) =
            (self.resource_version_match.as_str(), self.send_initial_events.is_some());
        let mut errors = Vec::new();
        if has_initial_events && version_match != NOT_OLDER_THAN {
            let text = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            errors.push(forbidden(VERSION_MATCH, text));
        }
        if has_initial_events && !watch_list {
            let text = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
            errors.push(forbidden(INITIAL_EVENTS, text));
        }
        if version_match.is_empty() {
            // A watch without a version begins with the current objects, like one with `NotOlderThan`.
            let starts_at_any_version =
                watch_list && !has_initial_events && matches!(self.resource_version.as_str(), "" | "0");
            if starts_at_any_version && !self.continue_token.is_empty() {
                errors.push(forbidden(VERSION_MATCH, FORBIDDEN_WITH_CONTINUE));
            }
            return errors;
        }
        if !has_initial_events {
            let text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            errors.push(forbidden(VERSION_MATCH, text));
        }
        if version_match != NOT_OLDER_THAN {
            errors.push(FieldError::not_supported(VERSION_MATCH, version_match, &[NOT_OLDER_THAN]));
        }
        if !self.continue_token.is_empty() {
            errors.push(forbidden(VERSION_MATCH, FORBIDDEN_WITH_CONTINUE));
        }
        errors
    }
}

const FORBIDDEN_WITH_CONTINUE: &str = "resourceVersionMatch is forbidden when continue is provided";

fn forbidden(field: &str, detail: &str) -> FieldError {
    FieldError::forbidden(field, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// The errors of a query string whose values need no decoding, one per line.
    fn format_errors(query: &str, watch_list: bool) -> String {
        let pairs: Vec<(&str, &str)> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
        let first = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        match ListOptions::parse(first) {
            Ok(options) => {
                let errors: Vec<String> = options.validate(watch_list).iter().map(ToString::to_string).collect();
                errors.join("\n")
            }
            Err(error) => error.to_string(),
        }
    }

    #[rstest]
    #[case::nothing("", "")]
    #[case::valid_combination("labelSelector=a&fieldSelector=c&limit=5&continue=x&timeoutSeconds=7", "")]
    #[case::exactly("resourceVersion=7&resourceVersionMatch=Exact", "")]
    #[case::not_older("resourceVersion=0&resourceVersionMatch=NotOlderThan&limit=-1", "")]
    #[case::not_a_number("limit=x", "strconv.ParseInt: parsing \"x\": invalid syntax")]
    #[case::empty_number("timeoutSeconds=", "strconv.ParseInt: parsing \"\": invalid syntax")]
    #[case::too_large(
        "limit=9223372036854775808",
        "strconv.ParseInt: parsing \"9223372036854775808\": value out of range"
    )]
    #[case::no_version(
        "resourceVersionMatch=Exact",
        "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
    )]
    #[case::exact_version_zero(
        "resourceVersionMatch=Exact&resourceVersion=0",
        "resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""
    )]
    #[case::match_with_continue(
        "resourceVersionMatch=NotOlderThan&resourceVersion=7&continue=x",
        "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided"
    )]
    #[case::unknown_match(
        "resourceVersionMatch=Newest&resourceVersion=7",
        "resourceVersionMatch: Unsupported value: \"Newest\": supported values: \"Exact\", \"NotOlderThan\", \"\""
    )]
    #[case::initial_events(
        "sendInitialEvents=false",
        "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"
    )]
    #[case::not_watched("watch=False&limit=5", "")]
    #[case::in_order(
        "resourceVersionMatch=Newest&sendInitialEvents=true",
        "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided\n\
         resourceVersionMatch: Unsupported value: \"Newest\": supported values: \"Exact\", \"NotOlderThan\", \"\"\n\
         sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"
    )]
    fn options_of_lists_are_validated(#[case] query: &str, #[case] expected: &str) {
        assert_eq!(format_errors(query, true), expected);
    }

    const INITIAL_EVENTS_QUERY: &str = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";

    #[rstest]
    #[case::plain("watch=true&timeoutSeconds=5", false, "")]
    #[case::initial_events(INITIAL_EVENTS_QUERY, true, "")]
    #[case::initial_not_served(
        INITIAL_EVENTS_QUERY,
        false,
        "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
    )]
    #[case::initial_events_without_match(
        "watch=&sendInitialEvents=true",
        true,
        "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
    )]
    #[case::match_without_initial_events(
        "watch=true&resourceVersionMatch=NotOlderThan",
        true,
        "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
    )]
    #[case::in_order(
        "watch=true&resourceVersionMatch=Exact&continue=x",
        true,
        "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided\n\
         resourceVersionMatch: Unsupported value: \"Exact\": supported values: \"NotOlderThan\"\n\
         resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided"
    )]
    fn options_of_watches_are_validated(#[case] query: &str, #[case] watch_list: bool, #[case] expected: &str) {
        assert_eq!(format_errors(query, watch_list), expected);
    }

    #[rstest]
    #[case("limit=5", Some(5))]
    #[case("limit=0", None)]
    #[case("limit=-5", None)]
    fn page_sizes_follow_from_the_limit(#[case] query: &str, #[case] expected: Option<usize>) {
        let limit = query.strip_prefix("limit=");
        assert_eq!(ListOptions::parse(|name| limit.filter(|_| name == "limit")).unwrap().page_size(), expected);
    }
}
