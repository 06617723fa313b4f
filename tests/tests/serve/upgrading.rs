//! Upgrades and downgrades. Watches resume while replicas are replaced; changes that the next minor version made to
//! the control plane and the database do not affect this version, which is installed over it again without writes to members; and
//! an incompatible database is reported with the remedy.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::until;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::serve::reading::ask;
use crate::serve::watching::{Watching, Writer};
use crate::serve::world::{MAPS_EVERYWHERE, World, object, objects};

const OURS: &str = env!("CARGO_PKG_VERSION");

/// The version number a number of minors later.
fn later(minors: u64) -> Result<String> {
    let mut parts = OURS.split('.');
    let (major, minor) = (parts.next().context("no major")?, parts.next().context("no minor")?);
    Ok(format!("{major}.{}.3", minor.parse::<u64>()? + minors))
}

/// Path of a later version's field in the definition of policies.
const MOOD: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";

/// Simulates `install` of a later version: its version, and an additional field of policies.
fn install_later(world: &World, minors: u64) -> Result<()> {
    let rendered = world.crowsnest(&["install", "--dry-run", "-o", "json"])?;
    let mut rendered: Value = serde_json::from_str(&rendered.out).with_context(|| format!("{rendered:?}"))?;
    let version = later(minors)?;
    for item in rendered["items"].as_array_mut().context("nothing is rendered")? {
        let group = match item["metadata"]["name"].as_str() {
            Some("crowsnest-installed") => {
                item["data"]["version"] = version.as_str().into();
                ("", "ConfigMap", Some("karmada-system"))
            }
            Some("propagationpolicies.policy.karmada.io") => {
                item.pointer_mut(MOOD).context("no schema of policies")?["mood"] = json!({"type": "string"});
                ("apiextensions.k8s.io", "CustomResourceDefinition", None)
            }
            _ => continue,
        };
        let (group, kind, namespace) = group;
        let there = objects(&world.to_cp, group, "v1", kind, namespace);
        let applied = object(item.clone())?;
        let name = applied.metadata.name.clone().context("no name")?;
        let params = PatchParams::apply("crowsnest").force();
        world.runtime.block_on(there.patch(&name, &params, &Patch::Apply(&applied)))?;
    }
    Ok(())
}

/// True if policies have the later version's field.
fn has_later_field(world: &World) -> Result<bool> {
    let definitions = objects(&world.to_cp, "apiextensions.k8s.io", "v1", "CustomResourceDefinition", None);
    let found = world.runtime.block_on(definitions.get("propagationpolicies.policy.karmada.io"))?;
    Ok(found.data.pointer(&format!("{MOOD}/mood")).is_some())
}

/// A policy with the later version's field.
fn create_policy_with_later_field(world: &World, name: &str) -> Result<()> {
    world.propagate(name)?;
    let policies = objects(&world.to_cp, "policy.karmada.io", "v1alpha1", "PropagationPolicy", Some("default"));
    let mood = Patch::Merge(json!({"spec": {"mood": "calm"}}));
    // A changed definition takes effect shortly after it is stored.
    until("the field to be stored", || {
        let kept = world.runtime.block_on(policies.patch(name, &PatchParams::default(), &mood))?;
        Ok(kept.data.pointer("/spec/mood") == Some(&json!("calm")))
    })
}

#[test]
fn watches_resume_while_replicas_are_replaced_after_a_downgrade() -> Result<()> {
    let Some(world) = World::start()? else { return Ok(()) };
    ensure!(world.install()?.ok, "not installed");
    let (mut replicas, _balancer) = world.serve()?;
    world.join()?;
    world.register()?;
    world.propagate("before")?;
    until("the first object to arrive", || world.has_arrived("before"))?;
    let before = world.in_member("before")?;
    let writer = Writer::start(&world)?;
    let watches = Watching::all(&world)?;
    // Clients that are disconnected while all replicas are replaced.
    let away = Watching::all(&world)?.into_iter().map(|watch| watch.leave(&world)).collect::<Result<Vec<_>>>()?;

    // A later version has been installed, and its first replica has migrated the database; then its replicas are
    // removed one by one.
    install_later(&world, 1)?;
    world.make_cache_newer(None)?;
    until("policies of later versions to be taken", || has_later_field(&world))?;
    create_policy_with_later_field(&world, "moody")?;
    until("the object of a later policy to arrive", || world.has_arrived("moody"))?;
    let moody = world.in_member("moody")?;
    for replica in &mut replicas {
        let (stopped, log) = replica.stop()?;
        ensure!(stopped.success(), "it stopped with {stopped}: {log}");
        replica.start_again()?;
        until("the next one to be ready", || replica.is_ready()).with_context(|| replica.log())?;
    }
    let logs = || replicas.iter().map(|replica| replica.log()).collect::<String>();
    let sick = world.crowsnest(&["doctor"])?;
    ensure!(sick.out.contains(&later(1)?) && sick.out.contains("crowsnest install"), "{sick:?}");

    // This version is installed again.
    let back = world.crowsnest(&["install"])?;
    ensure!(back.ok, "{back:?}");
    ensure!(!has_later_field(&world)?, "a field of the later version is left");
    world.propagate("after")?;
    until("the last object to arrive", || world.has_arrived("after")).with_context(logs)?;
    until("doctor to find no errors", || Ok(world.crowsnest(&["doctor"])?.ok))
        .with_context(|| format!("{:?}", world.crowsnest(&["doctor"])))?;
    let back = away.into_iter().map(|version| version.back(&world)).collect::<Result<Vec<_>>>()?;
    let written = writer.stop(&world)?;
    for watch in watches.into_iter().chain(back) {
        watch.expect_all_events(&world, &written).with_context(logs)?;
    }
    for (name, first) in [("before", before), ("moody", moody)] {
        let found = world.in_member(name)?;
        ensure!(found.is_some() && found == first, "{first:?} has been written again: {found:?}");
    }
    unsupported_versions_are_refused(&world)
}

/// Unsupported version differences are reported, and nothing is changed.
fn unsupported_versions_are_refused(world: &World) -> Result<()> {
    install_later(world, 2)?;
    let refused = world.crowsnest(&["install"])?;
    let between = later(1)?;
    let between = between.trim_end_matches(".3");
    ensure!(!refused.ok && refused.err.contains(&format!("install {between} in between")), "{refused:?}");
    ensure!(has_later_field(world)?, "it was refused, and the definitions were written");
    let (output, newest) = (world.crowsnest_cache(&["migrate"])?, "stop all replicas first");
    ensure!(!output.ok && output.err.contains(newest) && !output.err.contains("open-sesame"), "{output:?}");
    Ok(())
}

#[test]
fn a_database_of_a_later_version_is_rebuilt() -> Result<()> {
    let Some(world) = World::start()? else { return Ok(()) };
    ensure!(world.install()?.ok, "not installed");
    let (mut replicas, _balancer) = world.serve()?;
    world.join()?;
    world.register()?;
    world.propagate("kept")?;
    let found =
        || Ok(world.runtime.block_on(ask(&world.to_cp, MAPS_EVERYWHERE)).is_ok_and(|list| list.contains("\"kept\"")));
    until("what was propagated to be found", found).with_context(|| replicas[0].log())?;
    for replica in &mut replicas {
        replica.stop()?;
    }
    world.make_cache_newer(Some(999))?;
    let mut replica = replicas.swap_remove(0);
    replica.start_again()?;
    until("it to report why it cannot start", || {
        let log = replica.log();
        Ok(log.contains("written by a newer version (format 999") && log.contains("crowsnest cache rebuild --db"))
    })
    .with_context(|| replica.log())?;
    replica.kill()?;
    let output = world.crowsnest_cache(&["migrate"])?;
    ensure!(!output.ok && output.err.contains("written by a newer version (format 999"), "{output:?}");
    let output = world.crowsnest_cache(&["rebuild"])?;
    ensure!(output.ok && output.out.contains("the cache was deleted"), "{output:?}");
    let written = world.writes_in_member()?;
    replica.start_again()?;
    until("it to be ready", || replica.is_ready()).with_context(|| replica.log())?;
    until("all to be found again", found).with_context(|| replica.log())?;
    let wrote = world.writes_in_member()?.split_off(written.len());
    ensure!(wrote.is_empty(), "written in the member: {wrote:#?}");
    ensure!(replica.stop()?.0.success(), "{}", replica.log());
    let output = world.crowsnest_cache(&["migrate"])?;
    ensure!(output.ok && output.out.starts_with("the cache was migrated from format "), "{output:?}");
    Ok(())
}
