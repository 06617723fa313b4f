//! Runs one interpreter operation with the scripts of customizations, or with the default interpreter of the object's
//! kind.

use std::io::Write;

use anyhow::{Context, bail};
use crowsnest_api::config::{InterpreterOperation as Operation, ResourceInterpreterCustomization};
use crowsnest_api::work::AggregatedStatusItem;
use crowsnest_apimachinery::unstructured;
use crowsnest_apimachinery::yaml;
use crowsnest_interpreter::Interpreter;
use crowsnest_interpreter::customized::declarative;
use crowsnest_interpreter::default::dependencies;
use crowsnest_plan::gates::Gates;
use serde_json::{Value, json};

use super::rules::Rule;

/// Input of an operation.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) desired: Option<Value>,
    pub(super) observed: Option<Value>,
    pub(super) statuses: Vec<AggregatedStatusItem>,
    pub(super) replicas: i32,
}

/// The interpreter to run.
pub(super) enum InterpreterSource<'c> {
    Customizations(&'c [ResourceInterpreterCustomization]),
    BuiltIn,
}

/// Results with the names under which they are printed.
pub(super) type Results = Vec<(&'static str, Value)>;

impl Arguments {
    fn require_desired(&self) -> anyhow::Result<&Value> {
        self.desired.as_ref().context("desired, desired-file options are not set")
    }

    fn require_observed(&self) -> anyhow::Result<&Value> {
        self.observed.as_ref().context("observed, observed-file options are not set")
    }

    /// The desired or the observed object, if exactly one is set.
    fn object(&self) -> anyhow::Result<&Value> {
        match (&self.desired, &self.observed) {
            (None, None) => bail!("desired-file, observed-file options are not set"),
            (Some(_), Some(_)) => bail!("you can not specify both desired-file and observed-file options"),
            (Some(object), None) | (None, Some(object)) => Ok(object),
        }
    }
}

/// Runs the operation of a rule. An error names a missing argument, or that the interpreter has no rule for the object.
pub(super) async fn execute(
    rule: &Rule,
    source: &InterpreterSource<'_>,
    arguments: &Arguments,
) -> anyhow::Result<Results> {
    let object = match rule.operation {
        Operation::Retain => {
            let desired = arguments.require_desired()?;
            arguments.require_observed().map(|_| desired)?
        }
        _ => arguments.object()?,
    };
    match source {
        InterpreterSource::Customizations(customizations) => run_scripts(rule, customizations, object, arguments),
        InterpreterSource::BuiltIn => run_default(rule, object, arguments).await,
    }
}

fn run_scripts(
    rule: &Rule,
    customizations: &[ResourceInterpreterCustomization],
    object: &Value,
    arguments: &Arguments,
) -> anyhow::Result<Results> {
    let interpreter = Interpreter::new(Gates::default());
    for customization in customizations {
        interpreter.set_customization(customization.metadata.name.as_deref().unwrap_or_default(), Some(customization));
    }
    let scripts = interpreter.script_sources(object, &rule.operation);
    let Some(script) = scripts.first() else { bail!("rule is not enabled") };
    Ok(match rule.operation {
        Operation::Retain => vec![("retained", declarative::retain(script, object, arguments.require_observed()?)?)],
        Operation::InterpretReplica => {
            let (replicas, requirements) = declarative::replicas(script, object)?;
            vec![("replica", json!(replicas)), ("requires", json!(requirements))]
        }
        Operation::InterpretComponent => vec![("components", json!(declarative::components(script, object)?))],
        Operation::ReviseReplica => vec![("revised", declarative::revise(script, object, arguments.replicas)?)],
        Operation::InterpretStatus => vec![("status", declarative::reflect(script, object)?)],
        Operation::AggregateStatus => {
            vec![("aggregatedStatus", declarative::aggregate(script, object, &arguments.statuses)?)]
        }
        Operation::InterpretHealth => vec![("healthy", json!(declarative::health(script, object)?))],
        Operation::InterpretDependency => {
            let mut found = Vec::new();
            for script in &scripts {
                found.extend(declarative::dependencies(script, object)?);
            }
            vec![("dependencies", json!(dependencies::sort_and_deduplicate(found)))]
        }
        Operation::All | Operation::Prune | Operation::Other(_) => bail!("rule is not enabled"),
    })
}

async fn run_default(rule: &Rule, object: &Value, arguments: &Arguments) -> anyhow::Result<Results> {
    // With components enabled, the interpreter does not compute replicas.
    let has_components = rule.operation == Operation::InterpretComponent;
    let gates = Gates { multiple_pod_templates_scheduling: has_components, ..Gates::default() };
    let interpreter = Interpreter::new(gates);
    if !interpreter.is_interpreted(object, &rule.operation) {
        bail!("rule is not enabled");
    }
    let mut copy = object.clone();
    Ok(match rule.operation {
        Operation::Retain => {
            interpreter.retain(&mut copy, arguments.require_observed()?).await?;
            vec![("retained", copy)]
        }
        Operation::InterpretReplica => {
            let result = interpreter.replicas(object).await?;
            vec![("replica", json!(result.replicas)), ("requires", json!(result.requirements))]
        }
        Operation::InterpretComponent => vec![("components", json!(interpreter.replicas(object).await?.components))],
        Operation::ReviseReplica => {
            interpreter.revise_replicas(&mut copy, arguments.replicas).await?;
            vec![("revised", copy)]
        }
        Operation::InterpretStatus => vec![("status", json!(interpreter.reflect(object).await?))],
        Operation::AggregateStatus => {
            let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            if let Some(status) = interpreter.aggregate(object, &arguments.statuses, &now).await? {
                unstructured::set(&mut copy, &["status"], status);
            }
            vec![("aggregatedStatus", copy)]
        }
        Operation::InterpretHealth => vec![("healthy", json!(interpreter.is_healthy(object).await?))],
        Operation::InterpretDependency => vec![("dependencies", json!(interpreter.dependencies(object).await?))],
        Operation::All | Operation::Prune | Operation::Other(_) => bail!("rule is not enabled"),
    })
}

/// Prints results to `out`. An error is printed to `err` and, as in karmadactl, does not fail the command.
pub(super) fn print(
    rule: &Rule,
    results: &anyhow::Result<Results>,
    out: &mut impl Write,
    err: &mut impl Write,
) -> std::io::Result<()> {
    let results = match results {
        Ok(results) => results,
        Err(error) => return writeln!(err, "Execute {} error: {error}", rule.name()),
    };
    for (index, (name, value)) in results.iter().enumerate() {
        writeln!(out, "---\n# [{}/{}] {name}:", index + 1, results.len())?;
        out.write_all(yaml::to_yaml(value).as_bytes())?;
    }
    Ok(())
}
