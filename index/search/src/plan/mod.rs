//! Plans a query: converts its tree to a [`Match`], and determines which objects are searched: current ones,
//! deleted ones as well, or those of another time.
//!
//! Has no side effects: the kinds, regions and cluster labels of the fleet are passed as a [`PlanningContext`]. Terms that
//! are not supported are ignored with a notice instead of failing the query.

pub(crate) mod explain;
pub(crate) mod kinds;
pub(crate) mod labels;
pub(crate) mod paths;
pub(crate) mod patterns;
pub(crate) mod predicate;
pub(crate) mod propagation;
pub(crate) mod ranges;
pub(crate) mod references;
pub(crate) mod relations;
pub(crate) mod retention;
pub mod saved_search;
pub(crate) mod score;
pub(crate) mod sort;

use crate::document::DELETED;
use crate::document::columns::Keyword;
use crate::plan::kinds::kind_objects;
pub use crate::plan::kinds::{GroupKind, KindsByName};
use crate::plan::labels::{cluster_label_match, label_match};
use crate::plan::patterns::{glob_regex, literal_word, pattern_test, strip_anchors};
use crate::plan::predicate::{Match, PathTest, Test};
use crate::plan::propagation::{override_or_quota_match, propagation_match, with_subjects};
use crate::plan::references::ReferencePattern;
use crate::plan::relations::{CLOSURE_STEPS, DependencyDirection, MAX_STEPS, Relation};
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_query::{
    Expr, Field, FieldDefinition, FieldKind, LabelMatch, Moment, Notice, Pattern, Query, Span, Term, TermKind, Value,
    Values,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Clusters and kinds of the fleet, and the time, on which a plan depends.
#[derive(Debug, Clone, Default)]
pub struct PlanningContext {
    pub clusters: Vec<ClusterProperties>,
    pub kinds: Arc<KindsByName>,
    /// Unix seconds.
    pub now: i64,
}

/// Properties of a cluster that queries can filter by.
#[derive(Debug, Clone, Default)]
pub struct ClusterProperties {
    pub name: String,
    pub region: String,
    pub zones: Vec<String>,
    pub provider: String,
    pub labels: BTreeMap<String, String>,
    /// Some of its records are outdated.
    pub stale: bool,
}

/// A planned query.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub matches: Match,
    pub scope: TimeScope,
    pub notices: Vec<Notice>,
}

/// The objects that a query searches. Times are Unix seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimeScope {
    /// Current objects.
    #[default]
    Now,
    /// Current objects, and deleted ones in their last state.
    Deleted,
    /// Objects in their state at a time.
    At(i64),
    /// Objects in any state within a period.
    During(i64, i64),
}

/// Display name of the control plane, which queries may use as well.
const CONTROL_PLANE_LABEL: &str = "control plane";
const CURRENT_RELATIONS_NOTICE: &str = "relations are evaluated on current objects";

/// Plans a query.
pub fn plan(query: &Query, planning_context: &PlanningContext) -> Plan {
    let output = &query.output;
    let at = output.at.as_ref().map(|moment| moment.seconds(planning_context.timestamp()) as i64);
    let bound = |moment: &Option<Moment>, default: i64| {
        moment.as_ref().map_or(default, |moment| moment.seconds(planning_context.timestamp()) as i64)
    };
    let during = output.during.as_ref().map(|(from, to)| {
        let (from, until) = (bound(from, i64::MIN), bound(to, i64::MAX));
        // The end of a daily period is after its start, even across midnight.
        let is_next_day = until < from && matches!(to, Some(Moment::Daily(_)));
        (from, if is_next_day { until.saturating_add(24 * 3600) } else { until })
    });
    let context_at_time = PlanningContext { now: at.unwrap_or(planning_context.now), ..planning_context.clone() };
    let depth = output.depth.unwrap_or(1).clamp(1, MAX_STEPS);
    let has_explicit_depth = output.depth.is_some();
    let mut planner = Planner {
        planning_context: &context_at_time,
        depth,
        has_explicit_depth,
        includes_deleted: false,
        notices: Vec::new(),
    };
    let mut matches = planner.expr(&query.filter).unwrap_or(Match::All);
    if let Some(kind) = &output.select {
        let kind = planner.kind(&Pattern::Word(kind.clone()));
        matches = Match::Relation(Box::new(Relation::Family { inner: matches, kind, condition: String::new() }));
    }
    let scope = match (at, during) {
        (Some(at), _) => TimeScope::At(at),
        (None, Some((from, to))) => TimeScope::During(from, to),
        (None, None) if planner.includes_deleted => TimeScope::Deleted,
        (None, None) => TimeScope::Now,
    };
    let is_about_another_time = matches!(scope, TimeScope::At(_) | TimeScope::During(..));
    if is_about_another_time && matches.contains(&|part| matches!(part, Match::Relation(_))) {
        planner.notice(Span::default(), CURRENT_RELATIONS_NOTICE);
    }
    if at.is_some() && during.is_some() {
        planner.notice(Span::default(), "at: and during: are mutually exclusive; during: is ignored");
    }
    if output.depth.is_some_and(|depth| depth > MAX_STEPS) {
        planner.notice(Span::default(), format!("relations are limited to {MAX_STEPS} steps"));
    }
    Plan { matches, scope, notices: planner.notices }
}

impl PlanningContext {
    fn timestamp(&self) -> jiff::Timestamp {
        jiff::Timestamp::from_second(self.now).unwrap_or_default()
    }
}

struct Planner<'w> {
    planning_context: &'w PlanningContext,
    /// Maximum number of relation steps.
    depth: u8,
    /// The query contains the depth.
    has_explicit_depth: bool,
    /// The query includes deleted objects.
    includes_deleted: bool,
    notices: Vec<Notice>,
}

impl Planner<'_> {
    fn notice(&mut self, span: Span, message: impl Into<String>) {
        self.notices.push(Notice { span, message: message.into() });
    }

    /// The condition of an expression; None if it contains only terms that are ignored, because they are not supported.
    fn expr(&mut self, expr: &Expr) -> Option<Match> {
        match expr {
            Expr::All => Some(Match::All),
            Expr::Not(inner) => self.expr(inner).map(Match::negated),
            Expr::And(parts) => {
                let parts: Vec<_> = parts.iter().filter_map(|part| self.expr(part)).collect();
                (!parts.is_empty()).then_some(Match::And(parts))
            }
            Expr::Or(parts) => {
                let parts: Vec<_> = parts.iter().filter_map(|part| self.expr(part)).collect();
                (!parts.is_empty()).then_some(Match::Or(parts))
            }
            Expr::Term(term) => self.term(term),
        }
    }

    fn term(&mut self, term: &Term) -> Option<Match> {
        match &term.kind {
            TermKind::Text(pattern) => Some(match pattern {
                Pattern::Word(word) | Pattern::Phrase(word) => Match::Bare(word.to_lowercase()),
                Pattern::Glob(glob) => Match::BareRegex(glob_regex(glob, ".")),
                Pattern::Regex { source, .. } => Match::BareRegex(strip_anchors(source)),
                Pattern::Fuzzy { word, distance } => Match::Fuzzy(word.to_lowercase(), *distance),
            }),
            TermKind::Has { what, inner } => Some(self.has(what, inner)),
            TermKind::Field { field: Field::Path(path), exact, values } => self.path(term.span, path, *exact, values),
            TermKind::Field { field: Field::Definition(field), exact, values } => {
                let mut alternatives = Vec::new();
                for value in &values.any {
                    alternatives.push(self.value(term.span, field, *exact, value)?);
                }
                let any_value = Match::any_of(alternatives);
                Some(if values.negated { any_value.negated() } else { any_value })
            }
        }
    }

    fn value(&mut self, span: Span, field: &'static FieldDefinition, exact: bool, value: &Value) -> Option<Match> {
        match field.kind {
            FieldKind::Label => return Some(self.label(field.name, exact, value)),
            FieldKind::Number | FieldKind::Quantity | FieldKind::Age | FieldKind::Time => {
                self.includes_deleted |= field.name == "deleted";
                return Some(ranges::number_match(field, value, self.planning_context.now));
            }
            _ => {}
        }
        if let Some(matches) = override_or_quota_match(field.name, exact, value) {
            return Some(matches);
        }
        if matches!(value, Value::Exists)
            && let Some(keyword) = keyword_column(field.name)
        {
            return Some(Match::has(keyword.name()));
        }
        if matches!((value, field.name), (Value::Exists, "changed.field")) {
            return Some(Match::Changed("*".to_owned()));
        }
        if matches!((value, field.name), (Value::Exists, "region" | "zone" | "provider")) {
            return Some(self.clusters_where(field.name, &|value| !value.is_empty()));
        }
        let Value::Pattern(pattern) = value else {
            self.notice(span, format!("{} requires words; ignored", field.name));
            return None;
        };
        match field.name {
            "kind" => Some(self.kind(pattern)),
            "region" | "zone" | "provider" => {
                let test = pattern_test(pattern, false);
                let regex = test.regex();
                let passes = |value: &str| test.passes(&value.to_lowercase(), regex.as_ref());
                Some(self.clusters_where(field.name, &passes))
            }
            "is" => self.state(span, pattern),
            "content" => Some(text_match(pattern, Match::Content)),
            "message" => Some(text_match(pattern, Match::Message)),
            "about" => Some(self.referrers(span, Keyword::About, pattern)),
            "cause" => Some(self.referrers(span, Keyword::Cause, pattern)),
            "owner" | "uses" | "usedby" | "related" => Some(self.relation(span, field.name, pattern)),
            "reaches" => Some(self.dependency_relation(span, DependencyDirection::Dependents, pattern)),
            "reachedby" => Some(self.dependency_relation(span, DependencyDirection::Dependencies, pattern)),
            "changed.field" => self.plan_changed_field(span, pattern),
            "on" => Some(propagation_match(Keyword::On, pattern)),
            "evicting" => Some(propagation_match(Keyword::Evicting, pattern)),
            "health" => Some(propagation_match(Keyword::Health, pattern)),
            "condition" => Some(condition_match(pattern)),
            "cluster" if literal_word(pattern).is_some_and(|name| name.eq_ignore_ascii_case(CONTROL_PLANE_LABEL)) => {
                Some(Match::Keyword(Keyword::Cluster, Test::Equals(ClusterName::control_plane().to_string())))
            }
            name => match keyword_column(name) {
                Some(keyword) => Some(match (exact, literal_word(pattern)) {
                    (true, Some(text)) => Match::Exact(keyword, text.to_owned()),
                    _ if keyword == Keyword::Image => image_match(pattern),
                    _ => Match::Keyword(keyword, pattern_test(pattern, false)),
                }),
                None => {
                    self.notice(span, format!("{name}: is not supported; ignored"));
                    None
                }
            },
        }
    }

    /// Matches names, plurals, short names and groups of kinds.
    fn kind(&self, pattern: &Pattern) -> Match {
        match literal_word(pattern) {
            Some(word) => kind_objects(word, &self.planning_context.kinds),
            None => Match::Keyword(Keyword::Kind, pattern_test(pattern, false)),
        }
    }

    /// Objects of the clusters that have a value of the field for which `passes` is true.
    fn clusters_where(&self, field: &str, passes: &dyn Fn(&str) -> bool) -> Match {
        let has = |cluster: &&ClusterProperties| match field {
            "region" => passes(&cluster.region),
            "provider" => passes(&cluster.provider),
            _ => cluster.zones.iter().any(|zone| passes(zone)),
        };
        Match::Clusters(self.planning_context.clusters.iter().filter(has).map(|cluster| cluster.name.clone()).collect())
    }

    fn state(&mut self, span: Span, pattern: &Pattern) -> Option<Match> {
        let word = literal_word(pattern).unwrap_or_default().to_lowercase();
        match word.as_str() {
            "unscheduled" | "evicting" | "drifted" | "conflicting" | "failover" => {
                let state_match = Match::Keyword(Keyword::Is, Test::Equals(word.clone()));
                Some(with_subjects(state_match, format!("is:{word}")))
            }
            "terminating" | "unhealthy" | "managed" | "suspended" => {
                Some(Match::Keyword(Keyword::Is, Test::Equals(word)))
            }
            DELETED => {
                self.includes_deleted = true;
                Some(Match::Keyword(Keyword::Is, Test::Equals(word)))
            }
            "stale" => {
                let stale = self.planning_context.clusters.iter().filter(|cluster| cluster.stale);
                Some(Match::Clusters(stale.map(|cluster| cluster.name.clone()).collect()))
            }
            "orphan" => Some(Match::has(Keyword::Owner.name()).negated()),
            _ => {
                self.notice(span, format!("is:{word} is not a state; ignored"));
                None
            }
        }
    }

    /// Parses a reference in a query; adds a notice and returns None if the text is not a reference.
    fn reference(&mut self, span: Span, pattern: &Pattern) -> Option<ReferencePattern> {
        match ReferencePattern::parse(pattern, &self.planning_context.kinds) {
            Ok(reference) => {
                // Without discovered clusters, no kind is known.
                if let Some(kind) = reference.unknown_kind().filter(|_| !self.planning_context.kinds.is_empty()) {
                    self.notice(span, format!("no cluster serves the kind {kind}, or it cannot be listed and watched"));
                }
                Some(reference)
            }
            Err(notice) => {
                self.notice(span, notice);
                None
            }
        }
    }

    /// Objects with a reference in a column.
    fn referrers(&mut self, span: Span, keyword: Keyword, pattern: &Pattern) -> Match {
        self.reference(span, pattern).map_or(Match::None, |reference| reference.referrers(keyword))
    }

    fn relation(&mut self, span: Span, field: &str, pattern: &Pattern) -> Match {
        let Some(reference) = self.reference(span, pattern) else { return Match::None };
        let (depth, condition) = (self.depth, pattern.to_string());
        Match::Relation(Box::new(match field {
            "owner" | "uses" if depth == 1 => {
                return reference.referrers(if field == "owner" { Keyword::Owner } else { Keyword::Uses });
            }
            "owner" => Relation::Owned { inner: reference.referrers(Keyword::Owner), depth, condition },
            "uses" => Relation::Using { inner: reference.referrers(Keyword::Uses), depth, condition },
            "usedby" => Relation::Used { inner: reference.objects(), depth, condition },
            _ => Relation::Near { inner: reference.objects(), depth, condition },
        }))
    }

    /// `reaches:`, `reachedby:`. Without `depth:`, up to [`CLOSURE_STEPS`] steps are followed.
    fn dependency_relation(&mut self, span: Span, direction: DependencyDirection, pattern: &Pattern) -> Match {
        let Some(reference) = self.reference(span, pattern) else { return Match::None };
        let depth = if self.has_explicit_depth { self.depth } else { CLOSURE_STEPS };
        let (inner, condition) = (reference.objects(), pattern.to_string());
        Match::Relation(Box::new(Relation::Dependent { inner, direction, depth, condition }))
    }

    /// `has.event(…)`, `has.pod(…)`
    fn has(&mut self, what: &str, expr: &Expr) -> Match {
        let kind = self.kind(&Pattern::Word(what.to_owned()));
        let inner = kind.and(self.expr(expr).unwrap_or(Match::All));
        let condition = format!("{what}({expr})");
        let is_event = what.eq_ignore_ascii_case("event") || what.eq_ignore_ascii_case("events");
        Match::Relation(Box::new(if is_event {
            Relation::Subjects { inner, condition }
        } else {
            Relation::Holders { inner, condition }
        }))
    }

    fn path(&mut self, span: Span, path: &str, exact: bool, values: &Values) -> Option<Match> {
        let tests = values
            .any
            .iter()
            .map(|value| PathTest::new(path, exact, value, self.planning_context.now).map(Match::Path));
        let Some(tests) = tests.collect::<Option<Vec<_>>>() else {
            self.notice(span, format!(".{path} is not a valid manifest path; ignored"));
            return None;
        };
        let any_value = Match::any_of(tests);
        Some(if values.negated { any_value.negated() } else { any_value })
    }

    fn plan_changed_field(&mut self, span: Span, pattern: &Pattern) -> Option<Match> {
        match pattern {
            Pattern::Word(path) | Pattern::Phrase(path) | Pattern::Glob(path) => {
                Some(Match::Changed(path.trim_start_matches('.').to_owned()))
            }
            Pattern::Regex { .. } | Pattern::Fuzzy { .. } => {
                self.notice(span, "changed.field requires a path such as spec.replicas; ignored");
                None
            }
        }
    }

    fn label(&self, field: &str, exact: bool, value: &Value) -> Match {
        let requirement_match = |label: &LabelMatch| match field {
            "cluster.label" => cluster_label_match(label, &self.planning_context.clusters),
            "ann" => label_match(label, Keyword::Annotation, Keyword::AnnotationKey, exact),
            _ => label_match(label, Keyword::Label, Keyword::LabelKey, exact),
        };
        match value {
            Value::Label(label) => requirement_match(label),
            Value::Selector(all) => match all.as_slice() {
                [] => Match::All,
                all => Match::And(all.iter().map(requirement_match).collect()),
            },
            _ if field == "cluster.label" => {
                let labelled = self.planning_context.clusters.iter().filter(|cluster| !cluster.labels.is_empty());
                Match::Clusters(labelled.map(|cluster| cluster.name.clone()).collect())
            }
            _ => Match::has(if field == "ann" { Keyword::AnnotationKey } else { Keyword::LabelKey }.name()),
        }
    }
}

/// The column of a field that contains words.
pub(crate) fn keyword_column(field: &str) -> Option<Keyword> {
    Some(match field {
        "kind" => Keyword::Kind,
        "group" => Keyword::Group,
        "apiVersion" => Keyword::ApiVersion,
        "name" => Keyword::Name,
        "namespace" => Keyword::Namespace,
        "uid" => Keyword::Uid,
        "cluster" => Keyword::Cluster,
        "owner" => Keyword::Owner,
        "node" => Keyword::Node,
        "ip" => Keyword::Ip,
        "status" => Keyword::Status,
        "reason" => Keyword::Reason,
        "phase" => Keyword::Phase,
        "condition" => Keyword::Condition,
        "image" => Keyword::Image,
        "image.tag" => Keyword::ImageTag,
        "digest" => Keyword::Digest,
        "type" => Keyword::Type,
        "about" => Keyword::About,
        "cause" => Keyword::Cause,
        "uses" => Keyword::Uses,
        "policy" => Keyword::Policy,
        "binding" => Keyword::Binding,
        "work" => Keyword::Work,
        "override" => Keyword::Override,
        "is" => Keyword::Is,
        "on" => Keyword::On,
        "evicting" => Keyword::Evicting,
        "health" => Keyword::Health,
        _ => return None,
    })
}

/// `image:nginx` matches any part; a glob may begin at any path segment and omit the tag.
fn image_match(pattern: &Pattern) -> Match {
    let test = match pattern {
        Pattern::Glob(glob) => Test::Regex(format!("(?:.*/)?{}(?:[:@].*)?", glob_regex(glob, "."))),
        other => pattern_test(other, true),
    };
    Match::Keyword(Keyword::Image, test)
}

/// `Ready=False`, or `Ready` with any status.
fn condition_match(pattern: &Pattern) -> Match {
    let text = match pattern {
        Pattern::Word(text) | Pattern::Phrase(text) | Pattern::Glob(text) | Pattern::Fuzzy { word: text, .. } => text,
        Pattern::Regex { source, .. } => return Match::Keyword(Keyword::Condition, Test::Regex(strip_anchors(source))),
    };
    let part = |text: &str| {
        if matches!(pattern, Pattern::Glob(_)) { glob_regex(text, ".") } else { regex::escape(&text.to_lowercase()) }
    };
    let regex = match text.split_once('=') {
        Some((type_, status)) => format!("{}={}", part(type_), part(status)),
        None => format!("{}=.*", part(text)),
    };
    Match::Keyword(Keyword::Condition, Test::Regex(regex))
}

fn text_match(pattern: &Pattern, make: fn(Vec<String>) -> Match) -> Match {
    match pattern {
        Pattern::Word(text) | Pattern::Phrase(text) => {
            make(crate::document::tokens::chunks(&text.to_lowercase()).map(str::to_owned).collect())
        }
        Pattern::Fuzzy { word, distance } => Match::Fuzzy(word.to_lowercase(), *distance),
        Pattern::Glob(glob) => Match::BareRegex(glob_regex(glob, ".")),
        Pattern::Regex { source, .. } => Match::BareRegex(strip_anchors(source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_query::{Limits, parse};

    #[test]
    fn the_control_plane_is_found_by_its_shown_name() {
        let matches =
            |query: &str| plan(&parse(query, &Limits::default()).unwrap(), &PlanningContext::default()).matches;
        assert_eq!(matches(r#"cluster:"Control plane""#), matches("cluster:@control-plane"));
    }
}
