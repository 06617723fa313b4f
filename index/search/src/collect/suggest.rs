//! Completion of queries: fields, and values with the number of objects that have them, within the rest of the
//! query and the caller's permissions.

use crate::Searcher;
use crate::collect::TopHitsRequest;
use crate::collect::facets::{shorten_kinds, take_smallest};
use crate::collect::terms::{TermCounts, TermsRequest, count_terms};
use crate::document::columns::{Facet, Keyword, Number};
use crate::execute::{SearchResults, Sources, TRUNCATED, find, find_with_terms, resolve_with_notices};
use crate::plan::ranges::number_column;
use crate::plan::sort::{Rank, Sort, SortBy};
use crate::plan::{Plan, PlanningContext, TimeScope, keyword_column, plan};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_query::{FACETS, FIELDS, Field, FieldDefinition, FieldKind, Limits, Query, find_field, parse};
use crowsnest_store::Error;
use serde::Serialize;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of suggestions.
pub const MAX_SUGGESTIONS: usize = 50;
const TIMEOUT: Duration = Duration::from_millis(500);
/// Suggestions for fields with an age or a time.
const AGES: [&str; 6] = ["<5m", "<15m", "<1h", "<1d", "<7d", ">30d"];

/// An unfinished query.
#[derive(Debug, Clone)]
pub struct SuggestRequest {
    pub query: String,
    /// Byte offset of the cursor; offsets beyond the end of the query count as its end.
    pub cursor: usize,
    pub caller: UserInfo,
    /// Maximum number of suggestions, up to [`MAX_SUGGESTIONS`].
    pub limit: usize,
}

/// Suggestions for the cursor position.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Suggestions {
    /// Byte range of the query that a suggestion replaces.
    pub start: usize,
    pub end: usize,
    /// The field whose values are suggested; None if fields are suggested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    pub items: Vec<Suggestion>,
    /// Minimum and maximum of a field with numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<(i64, i64)>,
    /// The deadline or a limit was reached: values may be missing, counts are lower bounds, and the range may be wider.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// Notices for the caller, a sentence each.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub notices: BTreeSet<String>,
}

/// A field or a value that completes the token at the cursor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Suggestion {
    pub text: String,
    /// Description of the field, or the number of clusters with the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// Number of objects with the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

impl Suggestion {
    fn without_count(text: impl Into<String>) -> Self {
        Self { text: text.into(), about: None, count: None }
    }

    fn with_count(text: String, count: u64) -> Self {
        Self { text, about: None, count: Some(count) }
    }
}

/// Lower-case form; borrowed if the value is ASCII without capital letters.
fn to_lower(value: &str) -> Cow<'_, str> {
    match value.bytes().any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii()) {
        true => Cow::Owned(value.to_lowercase()),
        false => Cow::Borrowed(value),
    }
}

/// The token of a query at the cursor, with its byte range.
#[derive(Debug, PartialEq)]
struct Token<'q> {
    start: usize,
    end: usize,
    /// The part before the cursor.
    typed: &'q str,
}

/// A token begins after the last space or `(` outside of quotes, without a leading `-` or `!`, and ends before the next space
/// or `)`.
fn token_at(query: &str, cursor: usize) -> Token<'_> {
    let mut cursor = cursor.min(query.len());
    while !query.is_char_boundary(cursor) {
        cursor -= 1;
    }
    let last_break = |from: usize, to: usize| {
        let mut quoted = false;
        let mut last = from;
        for (at, c) in query[from..to].char_indices() {
            quoted ^= c == '"';
            if !quoted && (c.is_whitespace() || c == '(') {
                last = from + at + c.len_utf8();
            }
        }
        last
    };
    let mut start = last_break(0, cursor);
    if query[start..cursor].starts_with(['-', '!']) {
        start += 1;
    }
    let rest = &query[cursor..];
    let end = rest.find(|c: char| c.is_whitespace() || c == ')').map_or(query.len(), |at| cursor + at);
    Token { start, end, typed: &query[start..cursor] }
}

fn suggest_fields(typed: &str) -> Vec<Suggestion> {
    let typed = typed.to_lowercase();
    let begins = |field: &&FieldDefinition| field.name.to_lowercase().starts_with(&typed);
    let field_suggestions = FIELDS.iter().filter(begins).map(|field| Suggestion {
        text: format!("{}:", field.name),
        about: Some(field.description.to_owned()),
        count: None,
    });
    let has = "has.event(".starts_with(&typed).then(|| Suggestion {
        text: "has.event(".to_owned(),
        about: Some("objects with a matching event".to_owned()),
        count: None,
    });
    field_suggestions.chain(has).collect()
}

impl Searcher {
    /// Suggestions at the cursor of a query.
    pub async fn suggest(&self, request: &SuggestRequest) -> Result<Suggestions, Error> {
        let token = token_at(&request.query, request.cursor);
        let field = token.typed.split_once(':').and_then(|(name, value)| Some((find_field(name)?, value)));
        let Some((Field::Definition(field), value)) = field else {
            let mut items = if token.typed.contains(':') { Vec::new() } else { suggest_fields(token.typed) };
            items.truncate(request.limit.min(MAX_SUGGESTIONS));
            return Ok(ValueSuggestions::from(items).at(token.start, token.end, None));
        };
        // In a list of values, only the last one before the cursor is completed.
        let value = value.trim_start_matches(['=', '!']);
        let input = value.rsplit([',', '(']).next().unwrap_or_default();
        let start = token.start + token.typed.len() - input.len();
        let rest =
            format!("{} {}", &request.query[..token.start].trim_end_matches(['-', '!']), &request.query[token.end..]);
        let rest = parse(&rest, &Limits::default()).unwrap_or_default();
        let sources = self.sources(&request.caller, TIMEOUT).await;
        let _cancel_on_drop = sources.context.cancellation.clone().drop_guard();
        let planning_context = self.planning_context(&sources.context.permissions.lock());
        let values = ValueSuggester { sources, planning_context, rest, limit: request.limit.min(MAX_SUGGESTIONS) };
        let mut found = values.suggest(field, &input.to_lowercase()).await?;
        if found.incomplete {
            found.notices.insert(format!("not all values of {} were counted", field.name));
        }
        Ok(found.at(start, token.end, Some(field.name.to_owned())))
    }
}

/// Suggests values of a field that occur among the hits of the rest of the query.
pub(crate) struct ValueSuggester {
    pub sources: Sources,
    pub planning_context: PlanningContext,
    pub rest: Query,
    pub limit: usize,
}

/// Suggested values: see the fields of [`Suggestions`].
#[derive(Debug, Default)]
pub(crate) struct ValueSuggestions {
    pub items: Vec<Suggestion>,
    pub range: Option<(i64, i64)>,
    pub incomplete: bool,
    pub notices: BTreeSet<String>,
}

impl From<Vec<Suggestion>> for ValueSuggestions {
    fn from(items: Vec<Suggestion>) -> Self {
        Self { items, ..Self::default() }
    }
}

impl ValueSuggestions {
    /// The suggestions for a byte range of the query.
    fn at(self, start: usize, end: usize, field: Option<String>) -> Suggestions {
        let Self { items, range, incomplete, notices } = self;
        Suggestions { start, end, field, items, range, incomplete, notices }
    }
}

impl ValueSuggester {
    pub async fn suggest(&self, field: &'static FieldDefinition, input: &str) -> Result<ValueSuggestions, Error> {
        let fits = |value: &str| value.to_lowercase().contains(input);
        let plain = |all: &[&str]| -> Vec<Suggestion> {
            all.iter().filter(|value| fits(value)).map(|value| Suggestion::without_count(*value)).collect()
        };
        match (field.name, field.kind) {
            ("label" | "ann", _) => self.suggest_labels(field.name, input).await,
            ("is", _) => self.suggest_terms(Keyword::Is, "", input).await,
            ("region" | "zone" | "provider", _) => Ok(self.suggest_clusters(field.name, input).into()),
            // There are as many names as objects, so they are searched by prefix.
            ("name", _) => self.suggest_terms(Keyword::Name, input, input).await,
            ("group-by", _) => Ok(plain(FACETS).into()),
            ("sort", _) => Ok(self.suggest_sort_columns(input).into()),
            ("select", _) => self.suggest_facet(Facet::Kind, input).await,
            (_, FieldKind::Age | FieldKind::Time) => Ok(plain(&AGES).into()),
            (name, FieldKind::Number | FieldKind::Quantity) => match number_column(name) {
                Some(number) => {
                    Ok(ValueSuggestions { items: plain(&[">0", ">1", ">10"]), ..self.find_range(number).await? })
                }
                None => Ok(ValueSuggestions::default()),
            },
            (name, FieldKind::Reference) => match keyword_column(name) {
                Some(keyword) => self.suggest_references(keyword, input).await,
                None => Ok(ValueSuggestions::default()),
            },
            (name, _) => {
                match Facet::ALL.iter().filter(|facet| **facet != Facet::Scope).find(|facet| facet.field() == name) {
                    Some(facet) => self.suggest_facet(*facet, input).await,
                    None => match keyword_column(name) {
                        Some(keyword) => self.suggest_terms(keyword, input, input).await,
                        None => Ok(ValueSuggestions::default()),
                    },
                }
            }
        }
    }

    fn plan(&self) -> Plan {
        plan(&self.rest, &self.planning_context)
    }

    async fn suggest_facet(&self, facet: Facet, input: &str) -> Result<ValueSuggestions, Error> {
        let request = TopHitsRequest { facets: vec![facet], ..TopHitsRequest::total_only() };
        let found = find(&self.sources, self.plan(), request).await?;
        let mut counts = found.top.facets.into_iter().next().unwrap_or_default();
        if facet == Facet::Kind {
            counts = shorten_kinds(&counts);
        }
        // Values that begin with the text come before those that contain it.
        let matching_values = counts.iter().filter_map(|(value, count)| {
            let lower = to_lower(value);
            lower.contains(input).then(|| (!lower.starts_with(input), Reverse(*count), value))
        });
        let suggestion =
            |(_, Reverse(count), value): (_, _, &Arc<str>)| Suggestion::with_count(value.to_string(), count);
        Ok(ValueSuggestions {
            items: take_smallest(matching_values, self.limit).into_iter().map(suggestion).collect(),
            range: None,
            incomplete: found.top.incomplete,
            notices: found.notices.into_iter().collect(),
        })
    }

    async fn suggest_labels(&self, field: &str, input: &str) -> Result<ValueSuggestions, Error> {
        match (field, input.split_once('=')) {
            ("label", None) => self.suggest_facet(Facet::LabelKey, input.trim_start_matches('!')).await,
            ("label", Some(_)) => self.suggest_terms(Keyword::Label, input, input).await,
            (_, None) => self.suggest_terms(Keyword::AnnotationKey, input, input).await,
            (_, Some(_)) => self.suggest_terms(Keyword::Annotation, input, input).await,
        }
    }

    /// References that begin with the text. The index has each of them with and without the group of its kind; returns the
    /// form that the text has.
    async fn suggest_references(&self, keyword: Keyword, input: &str) -> Result<ValueSuggestions, Error> {
        let has_group = |reference: &str| reference.split('/').next().is_some_and(|kind| kind.contains('.'));
        let mut found = self.find_most_frequent(keyword, input, input, 4 * self.limit).await?;
        found.items.retain(|suggestion| has_group(&suggestion.text) == has_group(input));
        found.items.truncate(self.limit);
        Ok(found)
    }

    /// Terms of a column that begin with `prefix` and contain the text, most frequent first.
    async fn suggest_terms(&self, keyword: Keyword, prefix: &str, input: &str) -> Result<ValueSuggestions, Error> {
        self.find_most_frequent(keyword, prefix, input, self.limit).await
    }

    async fn find_most_frequent(
        &self,
        keyword: Keyword,
        prefix: &str,
        input: &str,
        max_values: usize,
    ) -> Result<ValueSuggestions, Error> {
        let (prefix, substring) = (prefix.to_owned(), input.to_owned());
        let terms_request = TermsRequest { keyword, prefix, substring, limit: Some(max_values), sums: Vec::new() };
        let plan = self.plan();
        let (current_matches, history_counts, mut notices) = match plan.scope {
            TimeScope::Now => {
                let (current_matches, notices) = resolve_with_notices(&self.sources, plan.matches).await?;
                (current_matches, None, notices)
            }
            _ => {
                let (request, terms_requests) = (TopHitsRequest::total_only(), std::slice::from_ref(&terms_request));
                let SearchResults { current_matches, mut terms, notices, .. } =
                    find_with_terms(&self.sources, plan, request, terms_requests).await?;
                (current_matches, terms.remove(&terms_request), notices.into_iter().collect())
            }
        };
        let TermCounts { counts, incomplete, notices: count_notices, .. } =
            count_terms(&self.sources, &current_matches, history_counts.as_ref(), &terms_request).await?;
        let incomplete = incomplete || notices.contains(TRUNCATED);
        notices.extend(count_notices);
        let items = counts.into_iter().map(|(text, count)| Suggestion::with_count(text, count)).collect();
        Ok(ValueSuggestions { items, range: None, incomplete, notices })
    }

    fn suggest_clusters(&self, field: &str, input: &str) -> Vec<Suggestion> {
        let mut values: BTreeMap<String, u64> = BTreeMap::new();
        for cluster in &self.planning_context.clusters {
            let cluster_values = match field {
                "region" => vec![cluster.region.clone()],
                "provider" => vec![cluster.provider.clone()],
                _ => cluster.zones.clone(),
            };
            cluster_values
                .into_iter()
                .filter(|value| !value.is_empty())
                .for_each(|value| *values.entry(value).or_default() += 1);
        }
        let matching_values = values.into_iter().filter(|(value, _)| value.to_lowercase().contains(input));
        let about = |clusters: u64| Some(format!("{clusters} clusters"));
        matching_values.map(|(text, clusters)| Suggestion { text, about: about(clusters), count: None }).collect()
    }

    fn suggest_sort_columns(&self, input: &str) -> Vec<Suggestion> {
        let (sign, input) = match input.strip_prefix('-') {
            Some(rest) => ("-", rest),
            None => ("", input),
        };
        let fields = FIELDS.iter().filter(|field| Sort::by_field(field.name, false).is_some());
        let matching_fields = fields.filter(|field| field.name.starts_with(input));
        matching_fields.map(|field| Suggestion::without_count(format!("{sign}{}", field.name))).collect()
    }

    /// Minimum and maximum of a column among the hits, without items; the range is None if no hit has a value.
    async fn find_range(&self, number: Number) -> Result<ValueSuggestions, Error> {
        let (mut suggestions, mut ends) = (ValueSuggestions::default(), Vec::new());
        for descending in [false, true] {
            let sort = vec![Sort { by: SortBy::Number(number), descending }];
            let request = TopHitsRequest { max_hits: 1, sort, ..TopHitsRequest::total_only() };
            let found = find(&self.sources, self.plan(), request).await?;
            suggestions.incomplete |= found.top.incomplete;
            suggestions.notices.extend(found.notices);
            ends.extend(found.top.hits.first().and_then(|hit| match hit.position.ranks.first() {
                Some(Rank::Number(Some(value))) => Some(*value),
                _ => None,
            }));
        }
        if let [smallest, largest] = ends.as_slice() {
            suggestions.range = Some((*smallest, *largest));
        }
        Ok(suggestions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("kind:po", 7, (0, 7, "kind:po"))]
    #[case("a -ns:ku b", 8, (3, 8, "ns:ku"))]
    #[case("has.event(rea", 13, (10, 13, "rea"))]
    #[case("name:\"a b", 9, (0, 9, "name:\"a b"))]
    #[case("kind:pod", 4, (0, 8, "kind"))]
    #[case("", 0, (0, 0, ""))]
    #[case("a ", 99, (2, 2, ""))]
    #[case("é:", 1, (0, 3, ""))]
    fn token_at_cursor_is_found(#[case] query: &str, #[case] cursor: usize, #[case] expected: (usize, usize, &str)) {
        let Token { start, end, typed } = token_at(query, cursor);
        assert_eq!((start, end, typed), expected);
    }
}
