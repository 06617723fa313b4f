//! Property tests of server-side apply: invariants of arbitrary sequences of applies, updates and forced conflicts,
//! on objects of several kinds.

use std::collections::BTreeSet;

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_schema::apply::{self, Apply, ApplyError, Manager, Versions, only_times_differ};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestCaseError};
use serde_json::{Value, json};

mod fields;
mod objects;

use fields::{applied_fields, has_empty_list, owners, split, value_at, with_sorted_elements};
use objects::Kind;

type TestResult<T = ()> = Result<T, TestCaseError>;

/// A write of one manager.
#[derive(Clone)]
enum Write {
    Apply(Value),
    Put(Value),
    /// An apply of an empty configuration, which releases all fields of the manager.
    ApplyEmpty,
}

/// Formatted so that a failing sequence can be reproduced by hand.
impl std::fmt::Debug for Write {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Write::Apply(config) => write!(f, "Apply {config}"),
            Write::Put(object) => write!(f, "Put {object}"),
            Write::ApplyEmpty => f.write_str("ApplyEmpty"),
        }
    }
}

fn writes(kind: &Kind) -> impl Strategy<Value = Vec<(&'static str, Write)>> {
    let write = prop_oneof![
        6 => kind.configurations.clone().prop_map(Write::Apply),
        2 => kind.configurations.clone().prop_map(Write::Put),
        1 => Just(Write::ApplyEmpty),
    ];
    prop::collection::vec((prop::sample::select(vec!["one", "two", "three"]), write), 1..7)
}

/// A manager that writes at a given time.
struct Writer<'a> {
    kind: &'a Kind,
    name: &'a str,
    second: i64,
    has_defaults: bool,
}

impl<'a> Writer<'a> {
    fn new(kind: &'a Kind, name: &'a str) -> Self {
        Self { kind, name, second: 0, has_defaults: false }
    }

    fn manager<'m>(&'m self, api_version: &'m str) -> Manager<'m> {
        let now = jiff::Timestamp::from_second(self.second).unwrap();
        Manager { name: self.name, subresource: "", api_version, now, reset_fields: &[] }
    }

    fn to_stored(&self, object: Value) -> Value {
        if self.has_defaults { self.kind.to_stored(object) } else { self.kind.decode(object) }
    }

    fn apply(&self, live: Option<&Value>, config: &Value, force: bool) -> ApiResult<Value> {
        let schema = Some(&*self.kind.schema);
        let manager = self.manager(config["apiVersion"].as_str().unwrap());
        let apply = Apply { versions: &Versions::default(), schema, live, config, manager: &manager, force };
        Ok(self.to_stored(apply.run().map_err(into_api_error)?))
    }

    fn put(&self, live: Option<&Value>, object: &Value) -> Value {
        let schema = Some(&*self.kind.schema);
        let mut new = self.to_stored(object.clone());
        let manager = self.manager(object["apiVersion"].as_str().unwrap());
        match live {
            Some(live) => {
                let tracked = apply::track_update(&Versions::default(), schema, live, &new, &manager);
                tracked.unwrap().write(&mut new);
            }
            None => apply::track_create(schema, &mut new, &manager),
        }
        new
    }
}

fn into_api_error(error: ApplyError) -> ApiError {
    match error {
        ApplyError::Failed(error) => error,
        ApplyError::ConversionRequired(conversion) => panic!("{conversion:?}"),
    }
}

fn empty_config(object: &Value) -> Value {
    json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"name": object["metadata"]["name"]}})
}

/// Applies a configuration, with force if it conflicts, and checks the result.
fn check_apply(writer: &Writer<'_>, live: Option<&Value>, config: &Value) -> TestResult<Value> {
    let (after, conflicts) = match writer.apply(live, config, false) {
        Ok(after) => (after, BTreeSet::new()),
        Err(error) => {
            prop_assert_eq!(error.code, 409, "{}", error.message);
            let causes = error.details.unwrap().causes.into_iter();
            let conflicts: BTreeSet<_> = causes.map(|cause| (cause.message, cause.field)).collect();
            (writer.apply(live, config, true).unwrap(), conflicts)
        }
    };
    // If no field has an owner yet, repeating the apply records the first manager and changes the object.
    if !owners(&after).is_empty() {
        check_repeated_apply(writer, &after, config)?;
    }
    let own_name = format!("conflict with {:?}", writer.name);
    let mut owners_after = owners(&after);
    let owned = owners_after.remove(&own_name).unwrap_or_default();
    for field in applied_fields(config) {
        prop_assert!(owned.contains_key(&field), "{} is not {}'s in {}", field, writer.name, after);
    }
    for (owner, before) in live.map(owners).unwrap_or_default() {
        if owner == own_name {
            continue;
        }
        let remaining = owners_after.remove(&owner).unwrap_or_default();
        prop_assert!(remaining.keys().all(|field| before.contains_key(field)), "{} gained {:?}", owner, remaining);
        for (field, path) in before.iter().filter(|(field, _)| value_at(&after, &before[*field]).is_some()) {
            let conflicts = conflicts.contains(&(owner.clone(), field.clone()));
            prop_assert_eq!(
                remaining.contains_key(field),
                !conflicts,
                "{} of {} at {:?} in {}",
                field,
                owner,
                path,
                after
            );
            // The map that contains an applied field is created with it and has no owner.
            let is_value = value_at(&after, path).is_some_and(|value| !value.is_object() && !value.is_array());
            prop_assert!(!conflicts || !is_value || owned.contains_key(field), "{} has no owner in {}", field, after);
        }
    }
    Ok(after)
}

fn check_repeated_apply(writer: &Writer<'_>, live: &Value, config: &Value) -> TestResult {
    let later = Writer { second: writer.second + 1, ..*writer };
    let again = later.apply(Some(live), config, false).map_err(|error| TestCaseError::fail(error.message))?;
    if has_empty_list(config) {
        // An empty list has no owner, so it is removed with its last element and added again by the next apply.
        prop_assert_eq!(with_sorted_elements(&again), with_sorted_elements(live));
        prop_assert_eq!(owners(&again), owners(live));
    } else {
        prop_assert!(only_times_differ(live, &again), "{}\nis not\n{}", again, live);
    }
    Ok(())
}

/// Applies an empty configuration and checks that the manager's fields are removed.
fn check_empty_apply(writer: &Writer<'_>, live: &Value) -> TestResult<Value> {
    let own_name = format!("conflict with {:?}", writer.name);
    let mut others = owners(live);
    let owned = others.remove(&own_name).unwrap_or_default();
    let plain = Writer { has_defaults: false, ..*writer };
    let after = plain.apply(Some(live), &empty_config(live), false).unwrap();
    prop_assert!(!owners(&after).contains_key(&own_name), "{}", after);
    for (owner, fields) in others.iter().filter(|(owner, _)| !owner.contains(" using ")) {
        for (field, path) in fields {
            let (before, after) = (value_at(live, path), value_at(&after, path));
            let is_unchanged = if before.is_some_and(|value| value.is_object() || value.is_array()) {
                after.is_some()
            } else {
                before == after
            };
            prop_assert!(is_unchanged, "{} of {} was {:?} and is {:?}", field, owner, before, after);
        }
    }
    for (field, path) in owned {
        let has_other_owner = others.values().flat_map(|fields| fields.keys()).any(|other| other.starts_with(&field));
        prop_assert!(
            has_other_owner || value_at(&after, &path).is_none_or(is_zero_value),
            "{} stays in {}",
            field,
            after
        );
    }
    Ok(writer.to_stored(after))
}

/// True for zero values, and for objects that contain nothing else.
fn is_zero_value(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().all(is_zero_value),
        value => crowsnest_schema::is_zero_value(value),
    }
}

/// Writes an object by PUT and checks the result.
fn check_put(writer: &Writer<'_>, live: Option<&Value>, object: &Value) -> TestResult<Value> {
    let after = writer.put(live, object);
    let api_version = object["apiVersion"].as_str().unwrap();
    let own_name = format!("conflict with {:?} using {api_version}", writer.name);
    let Some(live) = live else {
        prop_assert!(owners(&after).into_keys().all(|owner| owner == own_name), "{}", after);
        return Ok(after);
    };
    let (before, owners_after) = (owners(live), owners(&after));
    if before.is_empty() {
        prop_assert!(owners_after.is_empty(), "{}", after);
        return Ok(after);
    }
    for (owner, fields) in before.iter().filter(|(owner, _)| **owner != own_name) {
        let kept = owners_after.get(owner).cloned().unwrap_or_default();
        prop_assert!(kept.keys().all(|field| fields.contains_key(field)), "{} gained {:?}", owner, kept);
        for (field, path) in fields {
            let (before, after) = (value_at(live, path), value_at(&after, path));
            let is_same = before == after && before.is_some();
            prop_assert!(!is_same || kept.contains_key(field), "{} lost {} in {:?}", owner, field, after);
            // A removed field has no owner, even if a default removed it.
            let removed = before.is_some() && after.is_none();
            prop_assert!(
                !removed || !kept.contains_key(field),
                "{} was removed but is still owned by {}",
                field,
                owner
            );
        }
    }
    let kept = owners_after.get(&own_name).cloned().unwrap_or_default();
    for (field, path) in owned_after_create(writer, object) {
        let has_changed = value_at(live, &path) != value_at(&after, &path);
        let is_value = value_at(&after, &path).is_some_and(|value| !value.is_object() && !value.is_array());
        prop_assert!(!has_changed || !is_value || kept.contains_key(&field), "{} is not {}'s", field, own_name);
    }
    Ok(after)
}

/// The fields that a manager owns after creating an object.
fn owned_after_create(writer: &Writer<'_>, object: &Value) -> fields::OwnedFields {
    owners(&writer.put(None, object)).into_values().next().unwrap_or_default()
}

fn check_invariants(kind: &Kind, writes: Vec<(&'static str, Write)>) -> TestResult {
    let mut live: Option<Value> = None;
    for (second, (name, write)) in (1_i64..).zip(writes) {
        let writer = Writer { second: second * 10, has_defaults: true, ..Writer::new(kind, name) };
        live = match (write, live) {
            (Write::Apply(config), live) => Some(check_apply(&writer, live.as_ref(), &config)?),
            (Write::Put(object), live) => Some(check_put(&writer, live.as_ref(), &object)?),
            (Write::ApplyEmpty, Some(live)) => Some(check_empty_apply(&writer, &live)?),
            (Write::ApplyEmpty, None) => None,
        };
    }
    Ok(())
}

/// Splits a configuration at random and checks that two managers can apply the parts in either order.
fn check_commutation(kind: &Kind, config: &Write, coins: Vec<bool>) -> TestResult {
    let Write::Apply(config) = config else { return Ok(()) };
    let (first, second) = split(config, coins.into_iter().cycle());
    if applied_fields(&first).is_empty() || applied_fields(&second).is_empty() {
        // An apply of an empty part creates an object without owners, so the second apply behaves differently.
        return Ok(());
    }
    let (one, two) = (Writer::new(kind, "one"), Writer::new(kind, "two"));
    let apply = |writer: &Writer<'_>, live: Option<&Value>, config: &Value| {
        writer.apply(live, config, false).map_err(|error| TestCaseError::fail(error.message))
    };
    let alone = (apply(&one, None, &first)?, apply(&two, None, &second)?);
    let both = (apply(&two, Some(&alone.0), &second)?, apply(&one, Some(&alone.1), &first)?);
    prop_assert_eq!(with_sorted_elements(&both.0), with_sorted_elements(&both.1));
    prop_assert_eq!(owners(&both.0), owners(&both.1));
    prop_assert_eq!(with_sorted_elements(&check_empty_apply(&one, &both.0)?), with_sorted_elements(&alone.1));
    prop_assert_eq!(with_sorted_elements(&check_empty_apply(&two, &both.1)?), with_sorted_elements(&alone.0));
    Ok(())
}

fn config_with_cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(2), failure_persistence: None, ..ProptestConfig::default() }
}

macro_rules! property_tests {
    ($($kind:ident: $cases:literal,)*) => {$(
        mod $kind {
            use super::*;

            #[test]
            fn any_sequence_of_writes_keeps_the_invariants() {
                let kind = objects::$kind();
                let writes = writes(&kind);
                proptest!(config_with_cases($cases), |(writes in writes)| { check_invariants(&kind, writes)?; });
            }

            #[test]
            fn disjoint_applies_commute() {
                let kind = objects::$kind();
                let (config, coins) = (kind.configurations.clone().prop_map(Write::Apply), prop::collection::vec(any::<bool>(), 7..40));
                proptest!(config_with_cases($cases), |(config in config, coins in coins)| { check_commutation(&kind, &config, coins)?; });
            }
        }
    )*};
}

property_tests! {
    pod: 24,
    deployment: 16,
    service: 64,
    custom_resource: 128,
}
