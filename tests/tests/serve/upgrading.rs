//! Versions after one another. While replicas are replaced, watches go on from where they were; what a version a minor later has put into
//! the control plane and into the database is no hindrance to ours, which is installed over it again and writes nothing in members; and
//! what is of no use to it is said with the mend.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::until;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::reading::ask;
use crate::watching::{Watching, Writer};
use crate::world::{MAPS_EVERYWHERE, World, object, objects};

const OURS: &str = env!("CARGO_PKG_VERSION");

/// The version so many minors later.
fn later(minors: u64) -> Result<String> {
    let mut parts = OURS.split('.');
    let (major, minor) = (parts.next().context("no major")?, parts.next().context("no minor")?);
    Ok(format!("{major}.{}.3", minor.parse::<u64>()? + minors))
}

/// Where what a later version knows of policies is in their definition.
const MOOD: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";

/// As `install` of a version so many minors later would leave it: it names itself, and its policies have a field more.
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

/// Whether policies have the later version's field.
fn knows_moods(world: &World) -> Result<bool> {
    let definitions = objects(&world.to_cp, "apiextensions.k8s.io", "v1", "CustomResourceDefinition", None);
    let found = world.runtime.block_on(definitions.get("propagationpolicies.policy.karmada.io"))?;
    Ok(found.data.pointer(&format!("{MOOD}/mood")).is_some())
}

/// A policy as the later version's users write them.
fn in_a_mood(world: &World, name: &str) -> Result<()> {
    world.propagate(name)?;
    let policies = objects(&world.to_cp, "policy.karmada.io", "v1alpha1", "PropagationPolicy", Some("default"));
    let mood = Patch::Merge(json!({"spec": {"mood": "calm"}}));
    // The definition is stored a moment before it is obeyed.
    until("the mood to be kept", || {
        let kept = world.runtime.block_on(policies.patch(name, &PatchParams::default(), &mood))?;
        Ok(kept.data.pointer("/spec/mood") == Some(&json!("calm")))
    })
}

#[test]
fn watches_go_on_while_all_replicas_are_replaced_after_a_later_version_was_there() -> Result<()> {
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
    // These are away while all replicas are replaced.
    let away = Watching::all(&world)?.into_iter().map(|watch| watch.leave(&world)).collect::<Result<Vec<_>>>()?;

    // A later version has been installed and its first replica has had the database; then its replicas go again, one by one.
    install_later(&world, 1)?;
    world.make_cache_newer(None)?;
    until("policies of later versions to be taken", || knows_moods(&world))?;
    in_a_mood(&world, "moody")?;
    until("what a later policy says to arrive", || world.has_arrived("moody"))?;
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

    // Ours over it again.
    let back = world.crowsnest(&["install"])?;
    ensure!(back.ok, "{back:?}");
    ensure!(!knows_moods(&world)?, "a field of the later version is left");
    world.propagate("after")?;
    until("the last object to arrive", || world.has_arrived("after")).with_context(logs)?;
    until("all to be well", || Ok(world.crowsnest(&["doctor"])?.ok))
        .with_context(|| format!("{:?}", world.crowsnest(&["doctor"])))?;
    let back = away.into_iter().map(|version| version.back(&world)).collect::<Result<Vec<_>>>()?;
    let written = writer.stop(&world)?;
    for watch in watches.into_iter().chain(back) {
        watch.has_told(&world, &written).with_context(logs)?;
    }
    for (name, first) in [("before", before), ("moody", moody)] {
        let found = world.in_member(name)?;
        ensure!(found.is_some() && found == first, "{first:?} has been written again: {found:?}");
    }
    too_far_apart(&world)
}

/// What can't be gone over is told, and nothing is changed.
fn too_far_apart(world: &World) -> Result<()> {
    install_later(world, 2)?;
    let refused = world.crowsnest(&["install"])?;
    let between = later(1)?;
    let between = between.trim_end_matches(".3");
    ensure!(!refused.ok && refused.err.contains(&format!("install {between} in between")), "{refused:?}");
    ensure!(knows_moods(world)?, "it was refused, and the definitions were written");
    let (said, newest) = (world.crowsnest_cache(&["migrate"])?, "stop all replicas first");
    ensure!(!said.ok && said.err.contains(newest) && !said.err.contains("open-sesame"), "{said:?}");
    Ok(())
}

#[test]
fn a_database_that_a_later_version_changed_is_filled_anew() -> Result<()> {
    let Some(world) = World::start()? else { return Ok(()) };
    ensure!(world.install()?.ok, "not installed");
    let (mut replicas, _balancer) = world.serve()?;
    world.join()?;
    world.register()?;
    world.propagate("kept")?;
    let found =
        || Ok(world.runtime.block_on(ask(&world.to_cp, MAPS_EVERYWHERE)).is_ok_and(|told| told.contains("\"kept\"")));
    until("what was propagated to be found", found).with_context(|| replicas[0].log())?;
    for replica in &mut replicas {
        replica.stop()?;
    }
    world.make_cache_newer(Some(999))?;
    let mut replica = replicas.swap_remove(0);
    replica.start_again()?;
    until("it to say why it can't start", || {
        let log = replica.log();
        Ok(log.contains("written by a newer version (format 999") && log.contains("crowsnest cache rebuild --db"))
    })
    .with_context(|| replica.log())?;
    replica.kill()?;
    let said = world.crowsnest_cache(&["migrate"])?;
    ensure!(!said.ok && said.err.contains("written by a newer version (format 999"), "{said:?}");
    let said = world.crowsnest_cache(&["rebuild"])?;
    ensure!(said.ok && said.out.contains("the cache was deleted"), "{said:?}");
    let written = world.writes_in_member()?;
    replica.start_again()?;
    until("it to be ready", || replica.is_ready()).with_context(|| replica.log())?;
    until("all to be found again", found).with_context(|| replica.log())?;
    let wrote = world.writes_in_member()?.split_off(written.len());
    ensure!(wrote.is_empty(), "written in the member: {wrote:#?}");
    ensure!(replica.stop()?.0.success(), "{}", replica.log());
    let said = world.crowsnest_cache(&["migrate"])?;
    ensure!(said.ok && said.out.starts_with("the cache was migrated from format "), "{said:?}");
    Ok(())
}
