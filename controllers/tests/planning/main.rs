//! Planners against tables: `fixtures/*.yaml` hold cases, `snapshots/` what becomes of them or the cases themselves what
//! Karmada makes of them. `INSTA_UPDATE=always cargo test --workspace --test planning` writes the snapshots anew,
//! `cargo insta review` asks for each. Cases that Karmada has, too, are those of its own tables, and so are the answers.

mod aggregated_status;
mod autoscaling;
mod choice;
mod construction;
mod descheduling;
mod estimation;
mod eviction;
mod fleets;
mod native;
mod overriding;
mod scheduling;
mod selectors;
mod world;

use std::fmt::Display;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The cases of a fixture with their names.
fn cases<T: DeserializeOwned>(fixture: &str) -> Vec<(String, T)> {
    let cases: Vec<Value> = serde_saphyr::from_str(fixture).expect("a list of cases");
    let read = |mut case: Value| {
        let name = case.as_object_mut().and_then(|fields| fields.remove("name"));
        let name = name.and_then(|name| name.as_str().map(str::to_owned)).expect("a name");
        let given = serde_json::from_value(case).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, given)
    };
    cases.into_iter().map(read).collect()
}

/// What becomes of each case, for a snapshot.
fn answers<T: DeserializeOwned>(fixture: &str, answer: impl Fn(T) -> Value) -> Vec<Value> {
    let told = |(name, given): (String, T)| json!({"case": name, "answer": answer(given)});
    cases(fixture).into_iter().map(told).collect()
}

fn told(result: Result<Value, impl Display>) -> Value {
    result.unwrap_or_else(|error| json!({"error": error.to_string()}))
}
