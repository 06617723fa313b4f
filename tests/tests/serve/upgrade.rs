//! Upgrades and downgrades. Watches resume while replicas are replaced; changes that the next minor version made to
//! the control plane and the database do not affect this version, which is installed over it again without writes to
//! members; and an incompatible database is reported with the remedy.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::wait_for;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::serve::readers::get_text;
use crate::serve::test_env::{FLEET_CONFIG_MAPS, TestEnv, object, objects};
use crate::serve::watches::{WatchClient, Writer};

const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The version whose minor number is greater by `minors`.
fn later_version(minors: u64) -> Result<String> {
    let mut parts = OWN_VERSION.split('.');
    let (major, minor) = (parts.next().context("no major")?, parts.next().context("no minor")?);
    Ok(format!("{major}.{}.3", minor.parse::<u64>()? + minors))
}

/// Path of the schema of `spec` in the definition of policies, to which the later version adds a field.
const LATER_FIELDS_PATH: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";

/// Simulates `crowsnest install` of a later version: records its version and adds a field to the definition of policies.
fn install_later(env: &TestEnv, minors: u64) -> Result<()> {
    let rendered = env.crowsnest(&["install", "--dry-run", "-o", "json"])?;
    let mut rendered: Value = serde_json::from_str(&rendered.out).with_context(|| format!("{rendered:?}"))?;
    let version = later_version(minors)?;
    for item in rendered["items"].as_array_mut().context("nothing is rendered")? {
        let target = match item["metadata"]["name"].as_str() {
            Some("crowsnest-installed") => {
                item["data"]["version"] = version.as_str().into();
                ("", "ConfigMap", Some("karmada-system"))
            }
            Some("propagationpolicies.policy.karmada.io") => {
                item.pointer_mut(LATER_FIELDS_PATH).context("no schema of policies")?["mood"] =
                    json!({"type": "string"});
                ("apiextensions.k8s.io", "CustomResourceDefinition", None)
            }
            _ => continue,
        };
        let (group, kind, namespace) = target;
        let api = objects(&env.cp_client, group, "v1", kind, namespace);
        let applied = object(item.clone())?;
        let name = applied.metadata.name.clone().context("no name")?;
        let params = PatchParams::apply("crowsnest").force();
        env.runtime.block_on(api.patch(&name, &params, &Patch::Apply(&applied)))?;
    }
    Ok(())
}

/// True if policies have the later version's field.
fn has_later_field(env: &TestEnv) -> Result<bool> {
    let definitions = objects(&env.cp_client, "apiextensions.k8s.io", "v1", "CustomResourceDefinition", None);
    let found = env.runtime.block_on(definitions.get("propagationpolicies.policy.karmada.io"))?;
    Ok(found.data.pointer(&format!("{LATER_FIELDS_PATH}/mood")).is_some())
}

/// Propagates an object with a policy that has the later version's field.
fn create_policy_with_later_field(env: &TestEnv, name: &str) -> Result<()> {
    env.propagate(name)?;
    let policies = objects(&env.cp_client, "policy.karmada.io", "v1alpha1", "PropagationPolicy", Some("default"));
    let mood = Patch::Merge(json!({"spec": {"mood": "calm"}}));
    // A changed definition takes effect shortly after it is stored.
    wait_for("the field to be stored", || {
        let stored = env.runtime.block_on(policies.patch(name, &PatchParams::default(), &mood))?;
        Ok(stored.data.pointer("/spec/mood") == Some(&json!("calm")))
    })
}

#[test]
fn watches_resume_while_replicas_are_replaced_after_a_downgrade() -> Result<()> {
    let Some(env) = TestEnv::start()? else { return Ok(()) };
    ensure!(env.install()?.ok, "the installation failed");
    let (mut replicas, _balancer) = env.serve(&["a", "b"])?;
    env.join()?;
    env.register()?;
    env.propagate("before")?;
    wait_for("the first object to be propagated", || env.has_in_member("before"))?;
    let before = env.get_in_member("before")?;
    let writer = Writer::start(&env)?;
    let watches = WatchClient::start_all(&env)?;
    // Clients that are disconnected while all replicas are replaced.
    let disconnected =
        WatchClient::start_all(&env)?.into_iter().map(|client| client.disconnect(&env)).collect::<Result<Vec<_>>>()?;

    // A later version has been installed, and its first replica has migrated the database; then its replicas are
    // removed one by one.
    install_later(&env, 1)?;
    env.make_cache_newer(None)?;
    wait_for("the later version's field to be defined", || has_later_field(&env))?;
    create_policy_with_later_field(&env, "moody")?;
    wait_for("the object of the later version's policy to be propagated", || env.has_in_member("moody"))?;
    let moody = env.get_in_member("moody")?;
    for replica in &mut replicas {
        let (stopped, log) = replica.stop()?;
        ensure!(stopped.success(), "the replica stopped with {stopped}: {log}");
        replica.restart()?;
        wait_for("the restarted replica to be ready", || replica.is_ready()).with_context(|| replica.log())?;
    }
    let logs = || replicas.iter().map(|replica| replica.log()).collect::<String>();
    let diagnosis = env.crowsnest(&["doctor"])?;
    ensure!(diagnosis.out.contains(&later_version(1)?) && diagnosis.out.contains("crowsnest install"), "{diagnosis:?}");

    // This version is installed again.
    let reinstalled = env.crowsnest(&["install"])?;
    ensure!(reinstalled.ok, "{reinstalled:?}");
    ensure!(!has_later_field(&env)?, "a field of the later version is left");
    env.propagate("after")?;
    wait_for("the last object to be propagated", || env.has_in_member("after")).with_context(logs)?;
    wait_for("doctor to find no errors", || Ok(env.crowsnest(&["doctor"])?.ok))
        .with_context(|| format!("{:?}", env.crowsnest(&["doctor"])))?;
    let reconnected = disconnected.into_iter().map(|client| client.reconnect(&env)).collect::<Result<Vec<_>>>()?;
    let counts = writer.stop(&env)?;
    for client in watches.into_iter().chain(reconnected) {
        client.expect_all_events(&env, &counts).with_context(logs)?;
    }
    for (name, first) in [("before", before), ("moody", moody)] {
        let found = env.get_in_member(name)?;
        ensure!(found.is_some() && found == first, "{first:?} has been written again: {found:?}");
    }
    check_unsupported_versions(&env)
}

/// Checks that unsupported version differences are reported, and that nothing is changed.
fn check_unsupported_versions(env: &TestEnv) -> Result<()> {
    install_later(env, 2)?;
    let refused = env.crowsnest(&["install"])?;
    let between = later_version(1)?;
    let between = between.trim_end_matches(".3");
    ensure!(!refused.ok && refused.err.contains(&format!("install {between} in between")), "{refused:?}");
    ensure!(has_later_field(env)?, "the definitions were written although the installation was refused");
    let output = env.crowsnest_cache(&["migrate"])?;
    ensure!(
        !output.ok && output.err.contains("stop all replicas first") && !output.err.contains("open-sesame"),
        "{output:?}"
    );
    Ok(())
}

#[test]
fn a_database_of_a_later_version_is_rebuilt() -> Result<()> {
    let Some(env) = TestEnv::start()? else { return Ok(()) };
    ensure!(env.install()?.ok, "the installation failed");
    let (mut replicas, _balancer) = env.serve(&["a"])?;
    env.join()?;
    env.register()?;
    env.propagate("kept")?;
    let is_found = || {
        Ok(env
            .runtime
            .block_on(get_text(&env.cp_client, FLEET_CONFIG_MAPS))
            .is_ok_and(|list| list.contains("\"kept\"")))
    };
    wait_for("the propagated object to be found", is_found).with_context(|| replicas[0].log())?;
    for replica in &mut replicas {
        replica.stop()?;
    }
    env.make_cache_newer(Some(999))?;
    let mut replica = replicas.swap_remove(0);
    replica.restart()?;
    wait_for("the replica to report why it cannot start", || {
        let log = replica.log();
        Ok(log.contains("written by a newer version (format 999") && log.contains("crowsnest cache rebuild --db"))
    })
    .with_context(|| replica.log())?;
    replica.kill()?;
    let output = env.crowsnest_cache(&["migrate"])?;
    ensure!(!output.ok && output.err.contains("written by a newer version (format 999"), "{output:?}");
    let output = env.crowsnest_cache(&["rebuild"])?;
    ensure!(output.ok && output.out.contains("the cache was deleted"), "{output:?}");
    let writes_before = env.member_writes()?;
    replica.restart()?;
    wait_for("the replica to be ready", || replica.is_ready()).with_context(|| replica.log())?;
    wait_for("the propagated object to be found again", is_found).with_context(|| replica.log())?;
    let new_writes = env.member_writes()?.split_off(writes_before.len());
    ensure!(new_writes.is_empty(), "writes in the member: {new_writes:#?}");
    ensure!(replica.stop()?.0.success(), "{}", replica.log());
    let output = env.crowsnest_cache(&["migrate"])?;
    ensure!(output.ok && output.out.starts_with("the cache was migrated from format "), "{output:?}");
    Ok(())
}
