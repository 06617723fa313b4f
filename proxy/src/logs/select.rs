//! Selects the logs of a request: validated parameters, the search for pods, and the filters for containers and
//! lines. Has no side effects: the time is an argument.

use std::collections::BTreeSet;

use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::selector::Selector;
use crowsnest_index::Record;
use crowsnest_query::{
    Expr, Limits, Moment, Output, Pattern, Query as Search, Span, Term, TermKind, Value, Values, find_field, parse,
};
use jiff::{SignedDuration, Timestamp};
use regex::{Regex, RegexBuilder};

use super::pod::{Container, ContainerKind};
use crate::Error;

/// Number of open logs per request: the default and the maximum.
pub const DEFAULT_STREAMS: usize = 100;
pub const MAX_STREAMS: usize = 500;
/// Default number of lines per container without `tail` or a time, as in kubectl for several pods.
const DEFAULT_TAIL: i64 = 10;
/// Maximum number of values of a repeated parameter.
const MAX_VALUES: usize = 32;
/// Maximum length in bytes of a regular expression, and of its compiled form.
const MAX_PATTERN_BYTES: usize = 512;
const MAX_COMPILED_BYTES: usize = 1 << 20;
/// Maximum of `since`, in seconds.
const MAX_SINCE_SECONDS: f64 = 10.0 * 366.0 * 86_400.0;

/// Validated parameters of a request.
#[derive(Debug, Clone)]
pub struct LogRequest {
    /// The query that selects the pods, in the search language.
    pub search: String,
    pub filter: LogFilter,
    pub lines: LineFilter,
    pub follow: bool,
    pub previous: bool,
    /// Maximum number of open logs.
    pub max_streams: usize,
    /// Start position in each log.
    pub start: LogStart,
}

/// Start position in each log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogStart {
    pub since: Option<Timestamp>,
    /// Number of last lines; `None` means all lines.
    pub tail: Option<i64>,
}

/// Filter for pods and containers. Applied to the results of the search, it also covers conditions that the search
/// language cannot express.
#[derive(Debug, Clone)]
pub struct LogFilter {
    clusters: BTreeSet<ClusterName>,
    namespaces: BTreeSet<String>,
    labels: Option<Selector>,
    pod: Option<Regex>,
    container: Option<Regex>,
    init: bool,
    ephemeral: bool,
}

/// Filter for lines: at least one of `include`, if there are any, and none of `exclude`.
#[derive(Debug, Clone, Default)]
pub struct LineFilter {
    include: Vec<Regex>,
    exclude: Vec<Regex>,
}

impl LogRequest {
    /// Parses a query string. docs/LOGS.md lists the parameters.
    pub fn parse(query: Option<&str>, now: Timestamp) -> Result<Self, Error> {
        let mut parser = ParameterParser { query: Query::parse(query), errors: Vec::new() };
        let filter = LogFilter {
            clusters: parser.clusters(),
            namespaces: parser.namespaces(),
            labels: parser.parse_one("labelSelector", |text| Selector::parse(text).map_err(|error| error.to_string())),
            pod: parser.parse_one("pod", compile_pattern),
            container: parser.parse_one("container", compile_pattern),
            init: parser.flag("init", true),
            ephemeral: parser.flag("ephemeral", true),
        };
        let search = parser.search(&filter);
        let lines = LineFilter { include: parser.patterns("include"), exclude: parser.patterns("exclude") };
        let start = parser.start(now);
        let max_streams = parser.number("maxStreams", 1, MAX_STREAMS as i64);
        let request = Self {
            search: search.to_string(),
            filter,
            lines,
            follow: parser.flag("follow", false),
            previous: parser.flag("previous", false),
            max_streams: max_streams.and_then(|max| usize::try_from(max).ok()).unwrap_or(DEFAULT_STREAMS),
            start,
        };
        if request.follow && request.previous {
            parser.errors.push(FieldError::forbidden("previous", "logs of a terminated container cannot be followed"));
        }
        if parser.errors.is_empty() { Ok(request) } else { Err(Error::InvalidLogs(parser.errors)) }
    }
}

impl LogFilter {
    /// True if a hit is a selected pod.
    pub fn matches(&self, record: &Record) -> bool {
        let key = &record.key;
        *key.resource() == Gvr::new("", "v1", "pods")
            && !key.cluster().is_control_plane()
            && self.matches_cluster(key.cluster())
            && (self.namespaces.is_empty() || self.namespaces.contains(&*key.namespace))
            && self.labels.as_ref().is_none_or(|selector| selector.matches(&record.labels))
            && self.pod.as_ref().is_none_or(|pattern| pattern.is_match(&key.name))
    }

    pub fn matches_cluster(&self, cluster: &ClusterName) -> bool {
        self.clusters.is_empty() || self.clusters.contains(cluster)
    }

    pub fn matches_container(&self, container: &Container) -> bool {
        let is_selected = match container.kind {
            ContainerKind::Init => self.init,
            ContainerKind::Main => true,
            ContainerKind::Ephemeral => self.ephemeral,
        };
        is_selected && self.container.as_ref().is_none_or(|pattern| pattern.is_match(&container.name))
    }

    /// The search for the pods. `query` is the caller's query, which may return other pods than those that match it
    /// (`select:pod`); then only [`LogFilter::matches`] filters.
    fn search_for_pods(&self, query: Search) -> Search {
        let mut conditions = vec![query.filter];
        if query.output.select.is_none() {
            conditions.insert(0, field_expression("kind", false, vec![Pattern::Word("pod".to_owned())]));
            conditions.extend(any_name("namespace", self.namespaces.iter().map(String::as_str)));
            conditions.extend(any_name("cluster", self.clusters.iter().map(ClusterName::as_str)));
            let name = self.pod.as_ref().map(Regex::as_str).filter(|source| is_supported_by_search(source));
            let name = name.map(|source| Pattern::Regex { source: source.to_owned(), ignore_case: false });
            conditions.extend(name.map(|pattern| field_expression("name", false, vec![pattern])));
            let labels = self.labels.as_ref().filter(|selector| !selector.is_empty());
            let labels = labels.and_then(|selector| parse(&format!("label:\"{selector}\""), &Limits::default()).ok());
            conditions.extend(labels.filter(|query| query.notices.is_empty()).map(|query| query.filter));
        }
        let Output { select, depth, scope, timeout, .. } = query.output;
        let output = Output { select, depth, scope, timeout, ..Output::default() };
        Search { filter: Expr::and(conditions), output, notices: Vec::new() }
    }
}

impl LineFilter {
    pub fn matches(&self, text: &str) -> bool {
        let matches = |pattern: &Regex| pattern.is_match(text);
        (self.include.is_empty() || self.include.iter().any(matches)) && !self.exclude.iter().any(matches)
    }
}

/// Expression that matches a field of the query language with one of these patterns.
fn field_expression(name: &str, exact: bool, patterns: Vec<Pattern>) -> Expr {
    let Some(field) = find_field(name) else { return Expr::All };
    let values = Values { negated: false, any: patterns.into_iter().map(Value::Pattern).collect() };
    Expr::Term(Term { span: Span::default(), kind: TermKind::Field { field, exact, values } })
}

/// Expression that matches a field with one of these names; None without names.
fn any_name<'n>(field: &str, names: impl Iterator<Item = &'n str>) -> Option<Expr> {
    let words: Vec<Pattern> = names.map(|name| Pattern::Word(name.to_owned())).collect();
    (!words.is_empty()).then(|| field_expression(field, true, words))
}

/// True for the subset of regular expressions that the search supports: patterns are matched against a dictionary
/// of terms.
fn is_supported_by_search(source: &str) -> bool {
    source.bytes().all(|byte| {
        matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'^' | b'$' | b'*' | b'+' | b'|' | b'[' | b']' | b'(' | b')')
    })
}

fn compile_pattern(source: &str) -> Result<Regex, String> {
    if source.len() > MAX_PATTERN_BYTES {
        return Err(format!("must be at most {MAX_PATTERN_BYTES} bytes"));
    }
    let compiled = RegexBuilder::new(source).size_limit(MAX_COMPILED_BYTES).dfa_size_limit(MAX_COMPILED_BYTES).build();
    compiled.map_err(|error| error.to_string())
}

/// Parameters being parsed, with the errors found so far.
struct ParameterParser {
    query: Query,
    errors: Vec<FieldError>,
}

impl ParameterParser {
    fn values(&mut self, name: &str) -> Vec<String> {
        let values: Vec<String> = self.query.all(name).filter(|value| !value.is_empty()).map(str::to_owned).collect();
        if values.len() > MAX_VALUES {
            self.errors.push(FieldError::invalid(
                name,
                &values.len(),
                format!("must be specified at most {MAX_VALUES} times"),
            ));
        }
        values.into_iter().take(MAX_VALUES).collect()
    }

    /// A parameter that occurs at most once.
    fn parse_one<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let text = self.query.get(name).unwrap_or_default().to_owned();
        let value = if text.is_empty() { return None } else { parse(&text) };
        value.map_err(|reason| self.errors.push(FieldError::invalid(name, &text, reason))).ok()
    }

    fn flag(&mut self, name: &str, default: bool) -> bool {
        if !self.query.has(name) {
            return default;
        }
        match self.query.get(name).unwrap_or_default() {
            "" | "true" | "1" => true,
            "false" | "0" => false,
            other => {
                self.errors.push(FieldError::not_supported(name, other, &["true", "false"]));
                default
            }
        }
    }

    fn number(&mut self, name: &str, min: i64, max: i64) -> Option<i64> {
        self.parse_one(name, |text| {
            let number = text.parse().ok().filter(|number| (min..=max).contains(number));
            number.ok_or_else(|| format!("must be a number from {min} to {max}"))
        })
    }

    fn patterns(&mut self, name: &str) -> Vec<Regex> {
        let mut patterns = Vec::new();
        for source in self.values(name) {
            match compile_pattern(&source) {
                Ok(pattern) => patterns.push(pattern),
                Err(reason) => self.errors.push(FieldError::invalid(name, &source, reason)),
            }
        }
        patterns
    }

    fn clusters(&mut self) -> BTreeSet<ClusterName> {
        let mut clusters = BTreeSet::new();
        for name in self.values("cluster") {
            match ClusterName::parse(&name) {
                Ok(cluster) => drop(clusters.insert(cluster)),
                Err(error) => self.errors.push(FieldError::invalid("cluster", &name, error.to_string())),
            }
        }
        clusters
    }

    fn namespaces(&mut self) -> BTreeSet<String> {
        let is_name = |name: &String| {
            let has_valid_bytes = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
            has_valid_bytes && name.len() <= 63
        };
        let (names, others): (Vec<_>, Vec<_>) = self.values("namespace").into_iter().partition(is_name);
        let errors = others.iter().map(|name| FieldError::invalid("namespace", name, "is not a valid namespace name"));
        self.errors.extend(errors);
        names.into_iter().collect()
    }

    fn search(&mut self, filter: &LogFilter) -> Search {
        let query = self.parse_one("q", |text| {
            let query = parse(text, &Limits::default()).map_err(|error| error.to_string())?;
            let Output { at, during, select, .. } = &query.output;
            if at.is_some() || during.is_some() {
                return Err("logs are available for current pods only; remove at: and during:".to_owned());
            }
            match select.as_deref() {
                None | Some("pod" | "pods" | "po") => Ok(query),
                Some(other) => Err(format!("only pods have logs; use select:pod instead of select:{other}")),
            }
        });
        filter.search_for_pods(query.unwrap_or_default())
    }

    fn start(&mut self, now: Timestamp) -> LogStart {
        let ago = self.parse_one("since", |text| match parse_duration(text) {
            Some(Moment::Ago(seconds)) if seconds > 0.0 && seconds <= MAX_SINCE_SECONDS => {
                now.checked_sub(SignedDuration::from_secs_f64(seconds)).map_err(|error| error.to_string())
            }
            _ => Err("must be a duration like 90s, 15m, 2h30m or 7d".to_owned()),
        });
        let time = self.parse_one("sinceTime", |text| {
            text.parse::<Timestamp>().map_err(|_| "must be a time like 2026-01-31T12:00:00Z".to_owned())
        });
        if ago.is_some() && time.is_some() {
            self.errors.push(FieldError::forbidden("", "at most one of `sinceTime` or `since` may be specified"));
        }
        let since = ago.or(time);
        let default = if since.is_some() { -1 } else { DEFAULT_TAIL };
        let tail = self.number("tail", -1, i64::from(i32::MAX)).unwrap_or(default);
        LogStart { since, tail: Some(tail).filter(|tail| *tail >= 0) }
    }
}

/// Parses a duration in the notation of the query language.
fn parse_duration(text: &str) -> Option<Moment> {
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.') {
        return None;
    }
    let query = parse(&format!("at:now-{text}"), &Limits { length: 64, ..Limits::default() }).ok()?;
    query.output.at
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000;

    fn request(query: &str) -> Result<LogRequest, Error> {
        LogRequest::parse(Some(query), Timestamp::from_second(NOW).unwrap())
    }

    #[rstest::rstest]
    #[case::all("", "kind:pod")]
    #[case::query("q=image:nginx+OR+label:app%3Dweb", "kind:pod (image:nginx OR label:app=web)")]
    #[case::parameters(
        "namespace=b&namespace=a&cluster=m1&pod=^web-&labelSelector=app+in+(x,y),!z",
        "kind:pod namespace:=a,b cluster:=m1 name:/^web-/ label:\"app in (x,y),!z\""
    )]
    #[case::unsupported_by_search("pod=(%3Fi)WEB", "kind:pod")]
    #[case::no_order("q=x+sort:name+limit:3+group:node+timeout:2s", "kind:pod x timeout:2s")]
    #[case::related("q=kind:event+reason:BackOff+select:pod&namespace=a", "kind:event reason:BackOff select:pod")]
    #[case::saved("q=scope:mine", "kind:pod scope:mine")]
    fn pods_are_searched(#[case] query: &str, #[case] expected: &str) {
        let search = request(query).unwrap().search;
        assert_eq!(search, expected);
        let reparsed = parse(&search, &Limits::default()).unwrap();
        assert_eq!((reparsed.to_string(), reparsed.notices), (search, Vec::new()));
    }

    #[rstest::rstest]
    #[case::default("", None, Some(10))]
    #[case::since("since=1h30m", Some(NOW - 5400), None)]
    #[case::days("since=1d", Some(NOW - 86_400), None)]
    #[case::time("sinceTime=1970-01-01T00:01:00Z&tail=5", Some(60), Some(5))]
    #[case::all("tail=-1", None, None)]
    #[case::none("tail=0", None, Some(0))]
    fn the_start_of_a_log_is_set_by_a_time_or_a_number_of_lines(
        #[case] query: &str,
        #[case] since: Option<i64>,
        #[case] tail: Option<i64>,
    ) {
        let since = since.map(|second| Timestamp::from_second(second).unwrap());
        assert_eq!(request(query).unwrap().start, LogStart { since, tail });
    }

    #[rstest::rstest]
    #[case("include=(", "include: Invalid value")]
    #[case("exclude=a{1000}{1000}", "exclude: Invalid value")]
    #[case("pod=[", "pod: Invalid value")]
    #[case("cluster=a/b", "cluster: Invalid value")]
    #[case("namespace=A", "namespace: Invalid value: \"A\": is not a valid namespace name")]
    #[case("labelSelector=a+b", "labelSelector: Invalid value")]
    #[case("since=soon", "since: Invalid value: \"soon\": must be a duration like 90s, 15m, 2h30m or 7d")]
    #[case("since=-5m", "since: Invalid value")]
    #[case("sinceTime=yesterday", "sinceTime: Invalid value")]
    #[case("since=5m&sinceTime=1970-01-01T00:01:00Z", "at most one of `sinceTime` or `since` may be specified")]
    #[case("tail=-2", "tail: Invalid value: \"-2\": must be a number from -1 to 2147483647")]
    #[case("maxStreams=501", "maxStreams: Invalid value: \"501\": must be a number from 1 to 500")]
    #[case("follow=maybe", "follow: Unsupported value: \"maybe\": supported values: \"true\", \"false\"")]
    #[case("follow=true&previous=true", "previous: Forbidden: logs of a terminated container cannot be followed")]
    #[case("q=x+at:now-1h", "logs are available for current pods only")]
    #[case("q=x+select:node", "only pods have logs")]
    fn invalid_parameters_are_reported(#[case] query: &str, #[case] expected: &str) {
        let text = request(query).unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn repeated_parameters_are_limited() {
        let many: Vec<String> = (0..=MAX_VALUES).map(|nth| format!("cluster=m{nth}")).collect();
        let text = request(&many.join("&")).unwrap_err().to_string();
        assert!(text.contains("cluster: Invalid value: 33: must be specified at most 32 times"), "{text}");
    }

    #[rstest::rstest]
    #[case::all("", &["init", "web", "side", "debug"])]
    #[case::by_name("container=^(web|side)$", &["web", "side"])]
    #[case::without_others("init=false&ephemeral=false", &["web", "side"])]
    fn containers_are_selected_by_name_and_kind(#[case] query: &str, #[case] expected: &[&str]) {
        let kinds = [
            ("init", ContainerKind::Init),
            ("web", ContainerKind::Main),
            ("side", ContainerKind::Main),
            ("debug", ContainerKind::Ephemeral),
        ];
        let containers = kinds.map(|(name, kind)| Container { name: name.to_owned(), kind, state: Default::default() });
        let filter = request(query).unwrap().filter;
        let selected = containers.iter().filter(|container| filter.matches_container(container));
        assert_eq!(selected.map(|container| container.name.as_str()).collect::<Vec<_>>(), expected);
    }

    #[rstest::rstest]
    #[case("", "anything", true)]
    #[case("include=ERR&include=WARN", "a WARN b", true)]
    #[case("include=ERR", "fine", false)]
    #[case("include=ERR&exclude=health", "ERR /healthz", false)]
    fn lines_are_selected_by_patterns(#[case] query: &str, #[case] line: &str, #[case] expected: bool) {
        assert_eq!(request(query).unwrap().lines.matches(line), expected);
    }
}
