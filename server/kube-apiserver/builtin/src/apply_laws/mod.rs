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

use fields::{has_empty_list, in_order, named, owners, part, split};
use objects::Kind;

type Checked<T = ()> = Result<T, TestCaseError>;

#[derive(Clone)]
enum Write {
    Apply(Value),
    Put(Value),
    /// Applies an empty configuration, which gives up all fields.
    Leave,
}

/// Formatted so that a failing sequence can be reproduced by hand.
impl std::fmt::Debug for Write {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Write::Apply(config) => write!(f, "Apply {config}"),
            Write::Put(object) => write!(f, "Put {object}"),
            Write::Leave => f.write_str("Leave"),
        }
    }
}

fn writes(kind: &Kind) -> impl Strategy<Value = Vec<(&'static str, Write)>> {
    let write = prop_oneof![
        6 => kind.any.clone().prop_map(Write::Apply),
        2 => kind.any.clone().prop_map(Write::Put),
        1 => Just(Write::Leave),
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

    fn stored(&self, object: Value) -> Value {
        if self.has_defaults { self.kind.stored(object) } else { self.kind.read(object) }
    }

    fn apply(&self, live: Option<&Value>, config: &Value, force: bool) -> ApiResult<Value> {
        let schema = Some(&*self.kind.schema);
        let manager = self.manager(config["apiVersion"].as_str().unwrap());
        let apply = Apply { versions: &Versions::default(), schema, live, config, manager: &manager, force };
        Ok(self.stored(apply.run().map_err(refused)?))
    }

    fn put(&self, live: Option<&Value>, object: &Value) -> Value {
        let schema = Some(&*self.kind.schema);
        let mut new = self.stored(object.clone());
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

fn refused(stop: ApplyError) -> ApiError {
    match stop {
        ApplyError::Failed(error) => error,
        ApplyError::ConversionRequired(conversion) => panic!("{conversion:?}"),
    }
}

fn nothing_of(object: &Value) -> Value {
    json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"name": object["metadata"]["name"]}})
}

/// Applies a configuration, with force if it conflicts, and checks the result.
fn applied(writer: &Writer<'_>, live: Option<&Value>, config: &Value) -> Checked<Value> {
    let (after, conflicts) = match writer.apply(live, config, false) {
        Ok(after) => (after, BTreeSet::new()),
        Err(error) => {
            prop_assert_eq!(error.code, 409, "{}", error.message);
            let causes = error.details.unwrap().causes.into_iter();
            let conflicts: BTreeSet<_> = causes.map(|cause| (cause.message, cause.field)).collect();
            (writer.apply(live, config, true).unwrap(), conflicts)
        }
    };
    // Without any owner, managers are first recorded by the next apply.
    if !owners(&after).is_empty() {
        changes_nothing_again(writer, &after, config)?;
    }
    let own = format!("conflict with {:?}", writer.name);
    let mut owners_after = owners(&after);
    let owned = owners_after.remove(&own).unwrap_or_default();
    for field in named(config) {
        prop_assert!(owned.contains_key(&field), "{} is not {}'s in {}", field, writer.name, after);
    }
    for (who, before) in live.map(owners).unwrap_or_default() {
        if who == own {
            continue;
        }
        let left = owners_after.remove(&who).unwrap_or_default();
        prop_assert!(left.keys().all(|field| before.contains_key(field)), "{} gained {:?}", who, left);
        for (field, path) in before.iter().filter(|(field, _)| part(&after, &before[*field]).is_some()) {
            let conflicts = conflicts.contains(&(who.clone(), field.clone()));
            prop_assert_eq!(left.contains_key(field), !conflicts, "{} of {} at {:?} in {}", field, who, path, after);
            // The map that contains an applied field is created with it and has no owner.
            let is_value = part(&after, path).is_some_and(|value| !value.is_object() && !value.is_array());
            prop_assert!(!conflicts || !is_value || owned.contains_key(field), "{} is nobody's in {}", field, after);
        }
    }
    Ok(after)
}

fn changes_nothing_again(writer: &Writer<'_>, live: &Value, config: &Value) -> Checked {
    let later = Writer { second: writer.second + 1, ..*writer };
    let again = later.apply(Some(live), config, false).map_err(|error| TestCaseError::fail(error.message))?;
    if has_empty_list(config) {
        // An empty list has no owner, so it is removed with its last element and added again by the next apply.
        prop_assert_eq!(in_order(&again), in_order(live));
        prop_assert_eq!(owners(&again), owners(live));
    } else {
        prop_assert!(only_times_differ(live, &again), "{}\nis not\n{}", again, live);
    }
    Ok(())
}

/// Applies an empty configuration and checks that the manager's fields are removed.
fn left(writer: &Writer<'_>, live: &Value) -> Checked<Value> {
    let own = format!("conflict with {:?}", writer.name);
    let mut others = owners(live);
    let owned = others.remove(&own).unwrap_or_default();
    let plain = Writer { has_defaults: false, ..*writer };
    let after = plain.apply(Some(live), &nothing_of(live), false).unwrap();
    prop_assert!(!owners(&after).contains_key(&own), "{}", after);
    for (who, fields) in others.iter().filter(|(who, _)| !who.contains(" using ")) {
        for (field, path) in fields {
            let (before, after) = (part(live, path), part(&after, path));
            let is_there = if before.is_some_and(|value| value.is_object() || value.is_array()) {
                after.is_some()
            } else {
                before == after
            };
            prop_assert!(is_there, "{} of {} was {:?} and is {:?}", field, who, before, after);
        }
    }
    for (field, path) in owned {
        let is_others = others.values().flat_map(|fields| fields.keys()).any(|other| other.starts_with(&field));
        prop_assert!(is_others || part(&after, &path).is_none_or(is_zero_value), "{} stays in {}", field, after);
    }
    Ok(writer.stored(after))
}

/// True for values that Go omits as zero values.
fn is_zero_value(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_set) => !is_set,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_zero_value),
    }
}

/// Writes an object by PUT and checks the result.
fn put(writer: &Writer<'_>, live: Option<&Value>, object: &Value) -> Checked<Value> {
    let after = writer.put(live, object);
    let api_version = object["apiVersion"].as_str().unwrap();
    let own = format!("conflict with {:?} using {api_version}", writer.name);
    let Some(live) = live else {
        prop_assert!(owners(&after).into_keys().all(|who| who == own), "{}", after);
        return Ok(after);
    };
    let (before, owners_after) = (owners(live), owners(&after));
    if before.is_empty() {
        prop_assert!(owners_after.is_empty(), "{}", after);
        return Ok(after);
    }
    for (who, fields) in before.iter().filter(|(who, _)| **who != own) {
        let kept = owners_after.get(who).cloned().unwrap_or_default();
        prop_assert!(kept.keys().all(|field| fields.contains_key(field)), "{} gained {:?}", who, kept);
        for (field, path) in fields {
            let (before, after) = (part(live, path), part(&after, path));
            let is_same = before == after && before.is_some();
            prop_assert!(!is_same || kept.contains_key(field), "{} lost {} in {:?}", who, field, after);
            // Removal of a value by a default is not attributed to a manager.
            let removed = before.is_some() && after.is_none();
            prop_assert!(!removed || !kept.contains_key(field), "{} was removed but is still owned by {}", field, who);
        }
    }
    let kept = owners_after.get(&own).cloned().unwrap_or_default();
    for (field, path) in created(writer, object) {
        let has_changed = part(live, &path) != part(&after, &path);
        let is_value = part(&after, &path).is_some_and(|value| !value.is_object() && !value.is_array());
        prop_assert!(!has_changed || !is_value || kept.contains_key(&field), "{} is not {}'s", field, own);
    }
    Ok(after)
}

/// The fields that a manager owns after creating an object.
fn created(writer: &Writer<'_>, object: &Value) -> fields::Owned {
    owners(&writer.put(None, object)).into_values().next().unwrap_or_default()
}

fn keeps_the_laws(kind: &Kind, writes: Vec<(&'static str, Write)>) -> Checked {
    let mut live: Option<Value> = None;
    for (second, (name, write)) in (1_i64..).zip(writes) {
        let writer = Writer { second: second * 10, has_defaults: true, ..Writer::new(kind, name) };
        live = match (write, live) {
            (Write::Apply(config), live) => Some(applied(&writer, live.as_ref(), &config)?),
            (Write::Put(object), live) => Some(put(&writer, live.as_ref(), &object)?),
            (Write::Leave, Some(live)) => Some(left(&writer, &live)?),
            (Write::Leave, None) => None,
        };
    }
    Ok(())
}

fn commutes(kind: &Kind, config: &Write, coins: Vec<bool>) -> Checked {
    let Write::Apply(config) = config else { return Ok(()) };
    let (first, second) = split(config, coins.into_iter().cycle());
    if named(&first).is_empty() || named(&second).is_empty() {
        // The second manager would find an object without owners.
        return Ok(());
    }
    let (one, two) = (Writer::new(kind, "one"), Writer::new(kind, "two"));
    let apply = |writer: &Writer<'_>, live: Option<&Value>, config: &Value| {
        writer.apply(live, config, false).map_err(|error| TestCaseError::fail(error.message))
    };
    let alone = (apply(&one, None, &first)?, apply(&two, None, &second)?);
    let both = (apply(&two, Some(&alone.0), &second)?, apply(&one, Some(&alone.1), &first)?);
    prop_assert_eq!(in_order(&both.0), in_order(&both.1));
    prop_assert_eq!(owners(&both.0), owners(&both.1));
    prop_assert_eq!(in_order(&left(&one, &both.0)?), in_order(&alone.1));
    prop_assert_eq!(in_order(&left(&two, &both.1)?), in_order(&alone.0));
    Ok(())
}

fn some_cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(2), failure_persistence: None, ..ProptestConfig::default() }
}

macro_rules! laws {
    ($($kind:ident: $cases:literal,)*) => {$(
        mod $kind {
            use super::*;

            #[test]
            fn any_sequence_of_writes_keeps_the_invariants() {
                let kind = objects::$kind();
                let writes = writes(&kind);
                proptest!(some_cases($cases), |(writes in writes)| { keeps_the_laws(&kind, writes)?; });
            }

            #[test]
            fn disjoint_applies_commute() {
                let kind = objects::$kind();
                let (config, coins) = (kind.any.clone().prop_map(Write::Apply), prop::collection::vec(any::<bool>(), 7..40));
                proptest!(some_cases($cases), |(config in config, coins in coins)| { commutes(&kind, &config, coins)?; });
            }
        }
    )*};
}

laws! {
    pod: 24,
    deployment: 16,
    service: 64,
    thing: 128,
}
