//! Evictions: pod deletions that disruption budgets can reject.

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::request::options::{DeleteOptions, WriteOptions};
use crowsnest_apimachinery::selector::Selector;
use crowsnest_apimachinery::status::{ApiError, ApiResult, Cause, Details, Reason};
use crowsnest_registry::delete::check_preconditions;
use crowsnest_registry::object::{Object, format_time};
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::strategy::RequestContext;
use crowsnest_registry::{Change, Edit};
use serde_json::{Value, json};

use crate::http::handler::Call;
use crate::http::subresource::respond_success;
use crate::http::{Response, respond};

/// Maximum number of disrupted pods in a budget's status; above it, evictions wait for its controller.
const MAX_DISRUPTED_PODS: usize = 2000;

/// Deletes a pod unless a disruption budget rejects it.
pub(super) async fn evict(call: &mut Call, ctx: &RequestContext, eviction: &Value) -> ApiResult<Response> {
    let registry = call.api.registry.clone();
    let name = call.info.name.clone();
    if eviction.name() != name {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let options = eviction.get("deleteOptions").filter(|o| o.is_object()).cloned().unwrap_or_else(|| json!({}));
    let mut options = DeleteOptions::parse(Some(options), &call.query)?;
    let ctx = &RequestContext { dry_run: ctx.dry_run || options.dry_run, ..ctx.clone() };
    let pods = registry.resource(&Gvr::new("", "v1", "pods"))?;
    let pod = registry.get(&pods, &ctx.namespace, &name).await?;
    let budgets = registry.resource(&Gvr::new("policy", "v1", "poddisruptionbudgets"))?;
    let is_exempt = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"));
    if !is_exempt && !pod.is_deleting() {
        let mut matching_budgets = Vec::new();
        for budget in registry.list(&budgets, &ctx.namespace, &Default::default()).await?.objects {
            let selector = Selector::from_json(budget["spec"].get("selector"));
            if selector.is_ok_and(|s| s.matches_json(pod.labels())) {
                matching_budgets.push(budget);
            }
        }
        if matching_budgets.len() > 1 {
            let text =
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": text, "code": 500,
            });
            return Ok(respond::status(500, call.representation.encoding, status));
        }
        // Pods that are not ready do not count as healthy and can be evicted while enough others are.
        let needs_no_disruption = |budget: &Value| {
            !is_ready(&pod)
                && (budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow" || has_enough_healthy_pods(budget))
        };
        if let Some(budget) = matching_budgets.first().filter(|budget| !needs_no_disruption(budget)) {
            use_disruption(call, ctx, &budgets, budget, &name).await?;
        }
    }
    if !ctx.dry_run {
        set_disruption_target(call, ctx, &pods, &mut options).await?;
    }
    registry.delete(&pods, ctx, &name, &options, &mut call.warnings).await?;
    Ok(respond_success(201, call))
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// True if a budget requires healthy pods and has enough of them.
fn has_enough_healthy_pods(budget: &Value) -> bool {
    let number = |key: &str| status_number(budget, key);
    number("desiredHealthy") > 0 && number("currentHealthy") >= number("desiredHealthy")
}

/// Uses one disruption of a budget, or rejects the eviction with 429.
async fn use_disruption(
    call: &mut Call,
    ctx: &RequestContext,
    budgets: &ResourceRef,
    budget: &Value,
    pod: &str,
) -> ApiResult<()> {
    let name = budget.name().to_owned();
    let (pod, now) = (pod.to_owned(), format_time(ctx.now));
    let edit = Edit(std::sync::Arc::new(move |budget: &mut Value| {
        let status = &budget["status"];
        let number = |key: &str| status_number(budget, key);
        let reject = |text: String, retry_after_seconds: Option<u32>| {
            let cause = Cause { reason: "DisruptionBudget".into(), message: text, ..Cause::default() };
            let details = Details { causes: vec![cause], retry_after_seconds, ..Details::default() };
            Err(ApiError::new(
                Reason::TooManyRequests,
                "Cannot evict pod as it would violate the pod's disruption budget.",
            )
            .with_details(details))
        };
        if number("observedGeneration") < budget.generation() {
            let name = budget.name();
            return reject(format!("The disruption budget {name} is still being processed by the server."), Some(10));
        }
        let forbidden = |message: &str| {
            Err(ApiError::forbidden("policy", "poddisruptionbudget", budget.name(), message.to_owned()))
        };
        if number("disruptionsAllowed") < 0 {
            return forbidden("pdb disruptions allowed is negative");
        }
        if status["disruptedPods"].as_object().map_or(0, serde_json::Map::len) > MAX_DISRUPTED_PODS {
            return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
        }
        if number("disruptionsAllowed") == 0 {
            return reject(rejection_message(budget), None);
        }
        let remaining = number("disruptionsAllowed") - 1;
        budget["status"]["disruptionsAllowed"] = remaining.into();
        if remaining == 0 {
            let generation = status_number(budget, "observedGeneration");
            set_condition(budget, insufficient_pods_condition(generation, &now));
        }
        budget["status"]["disruptedPods"][&pod] = now.clone().into();
        Ok(())
    }));
    let ctx = RequestContext { subresource: "status".into(), ..ctx.clone() };
    let options = call.write_options("CreateOptions")?;
    let registry = call.api.registry.clone();
    registry.update(budgets, &ctx, &name, &Change::Edit(edit), &options, &mut call.warnings).await?;
    Ok(())
}

/// The reason why a budget allows no disruption.
fn rejection_message(budget: &Value) -> String {
    let name = budget.name();
    let mut conditions = budget["status"]["conditions"].as_array().into_iter().flatten();
    let text = |condition: &Value, key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    let forbidden = conditions
        .find(|condition| condition["type"] == "DisruptionAllowed")
        .filter(|condition| condition["status"] == "False")
        .map(|condition| (text(condition, "reason"), text(condition, "message")))
        .filter(|(_, message)| !message.is_empty());
    let (desired, current) = (status_number(budget, "desiredHealthy"), status_number(budget, "currentHealthy"));
    let prefix = format!("The disruption budget {name} does not allow evicting pods currently");
    match forbidden {
        Some((reason, message)) if reason == "SyncFailed" => format!("{prefix} because it failed sync: {message}"),
        _ if current <= desired => {
            format!("The disruption budget {name} needs {desired} healthy pods and has {current} currently")
        }
        Some((reason, message)) => format!("{prefix} ({reason}): {message}"),
        None => prefix,
    }
}

fn status_number(budget: &Value, key: &str) -> i64 {
    budget["status"][key].as_i64().unwrap_or(0)
}

/// Condition of a budget without remaining disruptions.
fn insufficient_pods_condition(generation: i64, now: &str) -> Value {
    let mut condition = json!({
        "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "", "lastTransitionTime": now,
    });
    if generation != 0 {
        condition["observedGeneration"] = generation.into();
    }
    condition
}

/// Adds the `DisruptionTarget` condition to the pod, which can exist for some time after the eviction.
async fn set_disruption_target(
    call: &mut Call,
    ctx: &RequestContext,
    pods: &ResourceRef,
    options: &mut DeleteOptions,
) -> ApiResult<()> {
    let name = call.info.name.clone();
    let (now, preconditions) = (format_time(ctx.now), options.preconditions.clone());
    let edit = Edit(std::sync::Arc::new(move |pod: &mut Value| {
        check_preconditions("", "Pod", &preconditions, pod)?;
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": now,
        });
        set_condition(pod, condition);
        Ok(())
    }));
    let ctx = RequestContext { subresource: "eviction".into(), ..ctx.clone() };
    let write = WriteOptions { raw: json!({}), ..call.write_options("CreateOptions")? };
    let registry = call.api.registry.clone();
    let (pod, _) = registry.update(pods, &ctx, &name, &Change::Edit(edit), &write, &mut call.warnings).await?;
    if let Some(version) = &mut options.preconditions.resource_version {
        *version = pod.resource_version().to_owned();
    }
    Ok(())
}

/// Sets a condition, keeping its transition time if the status is unchanged.
pub(super) fn set_condition(object: &mut Value, mut condition: Value) {
    let status = &mut object["status"];
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(conditions) = status["conditions"].as_array_mut() else { return };
    match conditions.iter_mut().find(|existing| existing["type"] == condition["type"]) {
        Some(existing) => {
            if existing["status"] == condition["status"] {
                condition["lastTransitionTime"] = existing["lastTransitionTime"].clone();
            }
            *existing = condition;
        }
        None => conditions.push(condition),
    }
}
