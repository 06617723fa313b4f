//! `crowsnest bench access`: access reviews over the RBAC objects of a large fleet, evaluated alone, without a control
//! plane.

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use crowsnest_apimachinery::rbac::access::{Scope, VisibleRbac};
use crowsnest_apimachinery::rbac::indirect::SearchedRules;
use crowsnest_apimachinery::rbac::{Action, ObjectKind, Rbac, RoleBinding};
use crowsnest_apimachinery::user::{AUTHENTICATED, UserInfo};
use serde_json::{Value, json};

use super::cache::MeasurementPrinter;
use super::resident_bytes;

#[derive(Debug, Clone, Args)]
pub(super) struct AccessArgs {
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=5000))]
    clusters: u32,
    /// Bindings per cluster; a tenth of them are ClusterRoleBindings
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    bindings: u32,
    /// Number of reviews of each kind
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    reviews: u32,
}

/// Namespaces of a cluster.
const NAMESPACES: u32 = 100;
/// ClusterRoles of a cluster, as many as a default installation has.
const ROLES: u32 = 70;
const RESOURCES: [&str; 6] = ["pods", "secrets", "configmaps", "services", "pods/exec", "serviceaccounts/token"];

pub(super) fn run(args: &AccessArgs) -> anyhow::Result<()> {
    let before = resident_bytes()?;
    let fleet: Vec<Rbac> = (0..args.clusters).map(|_| cluster(args.bindings)).collect::<anyhow::Result<_>>()?;
    let mut printer = MeasurementPrinter { out: std::io::stdout().lock() };
    printer.print_megabytes("access/memory", resident_bytes()?.saturating_sub(before))?;
    let visible = |_: ObjectKind, _: &str, _: &str| true;
    let views: Vec<VisibleRbac<'_>> = fleet.iter().map(|rbac| VisibleRbac { rbac, is_visible: &visible }).collect();
    let namespace = |nth: u32| format!("n{}", nth % NAMESPACES);
    let who_can = review_times(args.reviews, |nth| {
        let action = action(nth);
        let scope = Scope::from_namespace(&namespace(nth));
        views.iter().map(|view| view.who_can(&action, &scope).proofs.len()).sum()
    });
    printer.print_percentiles("access/who-can", who_can)?;
    let all_namespaces = review_times(args.reviews, |nth| {
        let action = action(nth);
        views.iter().map(|view| view.who_can(&action, &Scope::All).proofs.len()).sum()
    });
    printer.print_percentiles("access/who-can-all-namespaces", all_namespaces)?;
    let subject = review_times(args.reviews, |nth| {
        let user = UserInfo::new(format!("user{nth}"), [AUTHENTICATED, "team1"]);
        views.iter().map(|view| view.roles_of(&user, &Scope::All).0.len()).sum()
    });
    printer.print_percentiles("access/subject", subject)?;
    // A change while a review reads the cluster's rules: the rules are copied before they are changed.
    let changed = (0..args.reviews).map(|nth| binding(args.bindings + nth)).collect::<anyhow::Result<Vec<_>>>()?;
    let cluster = fleet.first().context("no cluster")?;
    let change = changed.into_iter().enumerate().map(|(nth, binding)| {
        let start = Instant::now();
        let mut rbac = cluster.clone();
        rbac.put_binding("", &format!("changed{nth}"), binding);
        let view = VisibleRbac { rbac: &rbac, is_visible: &visible };
        std::hint::black_box(view.who_can(&action(0), &Scope::cluster()).proofs.len());
        start.elapsed()
    });
    printer.print_percentiles("access/change", change.collect())?;
    let view = *views.first().context("no cluster")?;
    let indirect = review_times(args.reviews.min(20), |nth| {
        let (action, scope) = (action(nth), Scope::from_namespace(&namespace(nth)));
        let direct = view.who_can(&action, &scope).proofs;
        SearchedRules { cluster: view, control_plane: None }.paths_to(&action, &scope, &direct).paths.len()
    });
    printer.print_percentiles("access/indirect-one-cluster", indirect)
}

fn action(nth: u32) -> Action {
    let resource = RESOURCES[nth as usize % RESOURCES.len()];
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    Action::Resource {
        verb: if nth.is_multiple_of(2) { "get" } else { "create" }.to_owned(),
        group: String::new(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
        namespace: String::new(),
        name: String::new(),
    }
}

/// RBAC objects of a cluster.
fn cluster(bindings: u32) -> anyhow::Result<Rbac> {
    let mut rbac = Rbac::default();
    for nth in 0..ROLES {
        let resource = RESOURCES[nth as usize % RESOURCES.len()];
        let verbs: &[&str] = if nth.is_multiple_of(3) { &["create"] } else { &["get", "list", "watch"] };
        let rule = json!({"apiGroups": [""], "resources": [resource], "verbs": verbs});
        let rules = vec![rule; 1 + nth as usize % 5];
        rbac.put_role("", &format!("role{nth}"), serde_json::from_value(json!({"rules": rules}))?);
    }
    for nth in 0..bindings {
        let namespace = if nth.is_multiple_of(10) { String::new() } else { format!("n{}", nth % NAMESPACES) };
        rbac.put_binding(&namespace, &format!("binding{nth}"), binding(nth)?);
    }
    Ok(rbac)
}

fn binding(nth: u32) -> anyhow::Result<RoleBinding> {
    let role = json!({"kind": "ClusterRole", "name": format!("role{}", nth % ROLES)});
    Ok(serde_json::from_value(json!({"roleRef": role, "subjects": [subject(nth)]}))?)
}

fn subject(nth: u32) -> Value {
    match nth % 3 {
        0 => json!({"kind": "User", "name": format!("user{nth}")}),
        1 => json!({"kind": "Group", "name": format!("team{}", nth % 50)}),
        _ => {
            json!({"kind": "ServiceAccount", "namespace": format!("n{}", nth % NAMESPACES), "name": format!("account{nth}")})
        }
    }
}

/// Runs reviews and returns the time of each.
fn review_times(reviews: u32, review: impl Fn(u32) -> usize) -> Vec<Duration> {
    let time = |nth| {
        let start = Instant::now();
        std::hint::black_box(review(nth));
        start.elapsed()
    };
    (0..reviews).map(time).collect()
}
