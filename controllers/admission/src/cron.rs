//! CronFederatedHPA: validation of scheduled scaling of workloads and FederatedHPAs. Schedules have the dialect of the
//! Go module gronx, with which Karmada's webhook validates them.

use std::collections::BTreeSet;

use crowsnest_api::autoscaling::{CronFederatedHPA, CronFederatedHPARule, CronFederatedHPASpec};
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::format;
use jiff::tz::TimeZone;

use super::decode::decode;
use super::{Outcome, Refusal, Request, autoscaling, metadata};

pub(super) fn validate(request: &Request) -> Result<Outcome, Refusal> {
    let cron: CronFederatedHPA = decode(&request.object)?;
    let mut errors = metadata::validate(&cron.metadata, true, format::validate_dns1123_subdomain);
    errors.extend(validate_spec(&cron.spec));
    Refusal::check(&errors).map(|()| Outcome::Unchanged)
}

fn validate_spec(spec: &CronFederatedHPASpec) -> Vec<FieldError> {
    let target = &spec.scale_target_ref;
    let is_karmada_target = target.api_version.as_deref() == Some("autoscaling.karmada.io/v1alpha1");
    if is_karmada_target && target.kind != "FederatedHPA" {
        let detail = format!("invalid scaleTargetRef kind: {}, only support FederatedHPA", target.kind);
        return vec![FieldError::invalid("spec.scaleTargetRef.kind", &target.kind, detail)];
    }
    let mut errors = autoscaling::validate_reference(target, "spec.scaleTargetRef");
    let mut names = BTreeSet::new();
    for (index, rule) in spec.rules.iter().enumerate() {
        let path = format!("spec.rules[{index}]");
        if !names.insert(&rule.name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), &rule.name));
        }
        if !is_schedule(&rule.schedule) {
            errors.push(FieldError::invalid(format!("{path}.schedule"), &rule.schedule, "invalid cron format"));
        }
        if let Some(zone) = rule.time_zone.as_deref().filter(|zone| !is_time_zone(zone)) {
            errors.push(FieldError::invalid(format!("{path}.timeZone"), zone, format!("unknown time zone {zone}")));
        }
        let problems = if is_karmada_target { validate_bounds(rule) } else { validate_replicas(rule, &target.kind) };
        errors.extend(
            problems.into_iter().map(|(name, detail)| FieldError::invalid(format!("{path}.{name}"), "", detail)),
        );
    }
    errors
}

fn is_time_zone(zone: &str) -> bool {
    matches!(zone, "" | "UTC" | "Local") || TimeZone::get(zone).is_ok()
}

/// Validates minimum and maximum replicas for a FederatedHPA.
fn validate_bounds(rule: &CronFederatedHPARule) -> Vec<(&'static str, String)> {
    let min = rule.target_min_replicas.unwrap_or(1);
    let max = rule.target_max_replicas.unwrap_or(i32::MAX);
    let checks = [
        (
            rule.target_min_replicas.is_none() && rule.target_max_replicas.is_none(),
            "targetMaxReplicas",
            "targetMinReplicas and targetMaxReplicas cannot be nil at the same time if you want to scale FederatedHPA",
        ),
        (min <= 0, "targetMinReplicas", "targetMinReplicas should be larger than 0"),
        (max <= 0, "targetMaxReplicas", "targetMaxReplicas should be larger than 0"),
        (min > max, "targetMinReplicas", "targetMaxReplicas should be larger than or equal to targetMinReplicas"),
    ];
    checks
        .into_iter()
        .filter(|(is_violated, ..)| *is_violated)
        .map(|(_, name, detail)| (name, detail.to_owned()))
        .collect()
}

fn validate_replicas(rule: &CronFederatedHPARule, kind: &str) -> Vec<(&'static str, String)> {
    match rule.target_replicas {
        None => vec![("targetReplicas", format!("targetReplicas cannot be nil if you want to scale {kind}"))],
        Some(replicas) if replicas < 0 => {
            vec![("targetReplicas", "targetReplicas should be larger than or equal to 0".to_owned())]
        }
        Some(_) => Vec::new(),
    }
}

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const DAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const PREDEFINED_SCHEDULES: [&str; 12] = [
    "@yearly",
    "@annually",
    "@monthly",
    "@weekly",
    "@daily",
    "@hourly",
    "@always",
    "@5minutes",
    "@10minutes",
    "@15minutes",
    "@30minutes",
    "@everysecond",
];

/// True for a cron expression: five fields, six with seconds before or a year after them, seven with both.
pub(super) fn is_schedule(text: &str) -> bool {
    if PREDEFINED_SCHEDULES.contains(&text.trim().to_lowercase().as_str()) {
        return true;
    }
    let upper = text.to_uppercase();
    let fields: Vec<&str> = upper.split_whitespace().collect();
    let has_year =
        fields.last().is_some_and(|last| last.split(['-', '/', ',']).next().is_some_and(|year| year.len() == 4));
    let first = match fields.len() {
        5 => 1,
        6 if has_year => 1,
        6 | 7 => 0,
        _ => return false,
    };
    fields.iter().zip(first..).all(|(field, position)| field.split(',').all(|part| is_field_part(part, position)))
}

/// Range of values of a field by its position: second, minute, hour, day of month, month, day of week, year.
fn bounds(position: usize) -> (u32, u32) {
    match position {
        0 | 1 => (0, 59),
        2 => (0, 23),
        3 => (1, 31),
        4 => (1, 12),
        5 => (0, 7),
        _ => (1, 9999),
    }
}

fn is_field_part(part: &str, position: usize) -> bool {
    let (min, max) = bounds(position);
    let number = |text: &str| -> Option<u32> {
        let named = match position {
            4 => MONTHS.iter().position(|month| *month == text).map(|index| index + 1),
            5 => DAYS.iter().position(|day| *day == text),
            _ => None,
        };
        let number = named.and_then(|index| u32::try_from(index).ok()).or_else(|| text.parse().ok())?;
        (min..=max).contains(&number).then_some(number)
    };
    let range = |text: &str| match text.split_once('-') {
        None => number(text).is_some(),
        Some((start, end)) => number(start).zip(number(end)).is_some_and(|(start, end)| start <= end),
    };
    if let Some((start, step)) = part.split_once('/') {
        return step.parse::<u32>().is_ok_and(|step| step > 0) && (matches!(start, "*" | "0") || range(start));
    }
    match position {
        3 if part == "L" => true,
        3 if part.len() > 1 && part.ends_with('W') => number(&part[..part.len() - 1]).is_some(),
        5 if part.len() > 1 && part.ends_with('L') => number(&part[..part.len() - 1]).is_some(),
        5 if part.contains('#') => part.split_once('#').is_some_and(|(day, nth)| {
            number(day).is_some() && nth.parse::<u32>().is_ok_and(|nth| (1..=5).contains(&nth))
        }),
        _ => matches!(part, "*" | "?") || range(part),
    }
}

#[cfg(test)]
mod tests {
    use super::is_schedule;
    use rstest::rstest;

    #[rstest]
    #[case("0 0 * * *", true)]
    #[case("*/5 8-18 * * MON-FRI", true)]
    #[case("0 0 12 * * *", true)]
    #[case("0 0 1 1 * 2030", true)]
    #[case("0 0 L * *", true)]
    #[case("0 0 * * 5L", true)]
    #[case("0 0 * JAN,JUL 1#2", true)]
    #[case("@daily", true)]
    #[case("61 0 * * *", false)]
    #[case("every day", false)]
    #[case("0 0 * *", false)]
    #[case("*/0 * * * *", false)]
    #[case("5-1 * * * *", false)]
    #[case("", false)]
    fn schedules_are_recognized(#[case] text: &str, #[case] valid: bool) {
        assert_eq!(is_schedule(text), valid, "{text}");
    }
}
