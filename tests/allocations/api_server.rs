//! The embedded API server: schemas of custom resources, patches, server-side apply, CEL.

use anyhow::{Context, Error, Result, anyhow, ensure};
use crowsnest_cel::json::untyped_to_cel;
use crowsnest_cel::{Budget, Program, to_json, with_base_scope};
use crowsnest_schema::apply::{Apply, ApplyError, Manager, Versions};
use crowsnest_schema::patch::strategic_merge;
use crowsnest_schema::schema_set::SchemaSet;
use crowsnest_schema::{Schema, SchemaRef, defaulting, prune};
use jiff::Timestamp;
use serde_json::Value;

use super::fixtures::{DEPLOYMENT, yaml};
use super::hot_path::HotPath;

const SCHEMA: &str = include_str!("data/schema.yaml");
const CUSTOM_RESOURCE: &str = include_str!("data/custom-resource.yaml");
const STRATEGIC_PATCH: &str = include_str!("data/strategic-patch.yaml");
const APPLIED: &str = include_str!("data/applied.yaml");
const EXPRESSIONS: &str = include_str!("data/expressions.yaml");

const MANAGER: Manager<'static> =
    Manager { name: "flux", subresource: "", api_version: "apps/v1", now: Timestamp::UNIX_EPOCH, reset_fields: &[] };

pub fn hot_paths() -> Result<Vec<HotPath>> {
    let deployment: Value = yaml(DEPLOYMENT)?;
    Ok(vec![
        pruning_and_defaulting()?,
        strategic_merge_patch(deployment.clone())?,
        server_side_apply(&deployment)?,
        cel_compilation()?,
        cel_evaluation(deployment)?,
    ])
}

/// Prunes a custom resource and sets its defaults.
fn pruning_and_defaulting() -> Result<HotPath> {
    let structural: Value = yaml(SCHEMA)?;
    let schema = Schema::for_custom_resource(&structural);
    let object: Value = yaml(CUSTOM_RESOURCE)?;
    Ok(HotPath::with_input(
        "api-server/pruning-and-defaulting",
        move || Ok(object.clone()),
        move |mut object: Value| {
            let pruned = prune(&schema, &mut object);
            ensure!(!pruned.is_empty(), "no field is pruned");
            defaulting::drop_nulls(&structural, &mut object);
            defaulting::apply_defaults(&structural, &mut object);
            Ok((object, pruned))
        },
    ))
}

fn deployment_schema() -> Result<SchemaRef> {
    SchemaSet::builtin().kind("apps", "v1", "Deployment").context("Deployments have no schema")
}

fn strategic_merge_patch(deployment: Value) -> Result<HotPath> {
    let (schema, patch): (SchemaRef, Value) = (deployment_schema()?, yaml(STRATEGIC_PATCH)?);
    Ok(HotPath::with_input(
        "api-server/strategic-merge-patch",
        move || Ok(patch.clone()),
        move |mut patch: Value| Ok(strategic_merge(&schema, &deployment, &mut patch)?),
    ))
}

/// Applies a changed configuration of the same manager.
fn server_side_apply(deployment: &Value) -> Result<HotPath> {
    let (schema, config): (SchemaRef, Value) = (deployment_schema()?, yaml(APPLIED)?);
    let live = apply(&schema, None, deployment)?;
    Ok(HotPath::new("api-server/server-side-apply", move || apply(&schema, Some(&live), &config)))
}

fn apply(schema: &Schema, live: Option<&Value>, config: &Value) -> Result<Value> {
    let versions = Versions::default();
    let apply = Apply { versions: &versions, schema: Some(schema), live, config, manager: &MANAGER, force: false };
    apply.run().map_err(|error| match error {
        ApplyError::Failed(error) => Error::new(error),
        ApplyError::ConversionRequired(conversion) => anyhow!("the conversion to {} is missing", conversion.to),
    })
}

fn cel_compilation() -> Result<HotPath> {
    let sources: Vec<String> = yaml(EXPRESSIONS)?;
    Ok(HotPath::new("api-server/cel-compilation", move || compile(&sources)))
}

fn compile(sources: &[String]) -> Result<Vec<Program>> {
    sources.iter().map(|source| Program::compile(source).map_err(Error::msg)).collect()
}

fn cel_evaluation(object: Value) -> Result<HotPath> {
    let sources: Vec<String> = yaml(EXPRESSIONS)?;
    let programs = compile(&sources)?;
    Ok(HotPath::new("api-server/cel-evaluation", move || {
        let mut budget = Budget::for_rules();
        with_base_scope(|base| -> Result<()> {
            let mut scope = base.new_inner_scope();
            scope.add_variable_from_value("object", untyped_to_cel(&object));
            for (program, source) in programs.iter().zip(&sources) {
                let value = to_json(&program.execute(&scope, &mut budget)?).map_err(Error::msg)?;
                ensure!(value == Value::Bool(true), "{source} evaluates to {value}");
            }
            Ok(())
        })
    }))
}
