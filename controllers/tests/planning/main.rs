//! Table tests of planners: `fixtures/*.yaml` contain the cases. The expected results are in `snapshots/`, or in the
//! cases if they were taken from Karmada. `INSTA_UPDATE=always cargo test --workspace --test planning` updates the
//! snapshots, `cargo insta review` reviews them. Cases that exist in Karmada have the inputs and results of its own
//! tables.

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
mod scenario;
mod scheduling;
mod selectors;

use std::fmt::Display;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Cases of a fixture with their names.
fn cases<T: DeserializeOwned>(fixture: &str) -> Vec<(String, T)> {
    let cases: Vec<Value> = serde_saphyr::from_str(fixture).expect("a list of cases");
    let read = |mut case: Value| {
        let name = case.as_object_mut().and_then(|fields| fields.remove("name"));
        let name = name.and_then(|name| name.as_str().map(str::to_owned)).expect("a name");
        let input = serde_json::from_value(case).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, input)
    };
    cases.into_iter().map(read).collect()
}

/// Results of all cases, for a snapshot.
fn case_results<T: DeserializeOwned>(fixture: &str, evaluate: impl Fn(T) -> Value) -> Vec<Value> {
    let result = |(name, input): (String, T)| json!({"case": name, "result": evaluate(input)});
    cases(fixture).into_iter().map(result).collect()
}

fn value_or_error(result: Result<Value, impl Display>) -> Value {
    result.unwrap_or_else(|error| json!({"error": error.to_string()}))
}
