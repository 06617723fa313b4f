//! Least privilege: a run of the whole system uses every permission granted to Crowsnest's accounts by roles in charts, manifests,
//! code and documentation, or `least_privilege/accounts.yaml` explains why an unused permission is granted.
//!
//! The run joins one member in observe mode and one in steer mode, registers a third with a bootstrap token and acts as
//! its kubelet, renews certificates, propagates, searches, accesses members as several users, creates the credentials
//! of an installation, and removes all members. The permissions that each account used are read from the audit logs of all
//! API servers and written to `target/tmp/least-privilege`.

mod evaluation;
mod grants;
mod pods;
mod records;
mod run;
mod test_env;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::screenshot_folder;
use serde::Deserialize;

use evaluation::{Account, check_account};
use grants::{Identity, Rbac};
use pods::Charts;
use records::{Record, Records};
use test_env::{Server, TestEnv};

const ACCOUNTS: &str = "tests/tests/least_privilege/accounts.yaml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Accounts {
    accounts: Vec<Account>,
    others: Vec<OtherBindings>,
}

/// Bindings that are not for Crowsnest's accounts: for users, for all users, and of the test itself.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OtherBindings {
    bindings: BTreeSet<String>,
    #[expect(dead_code, reason = "documentation")]
    why: String,
}

#[test]
fn permissions_are_used_or_explained() -> Result<()> {
    let accounts_file = fs::read_to_string(crowsnest_tests::repository_root().join(ACCOUNTS)).context(ACCOUNTS)?;
    let accounts_file: Accounts = serde_saphyr::from_str(&accounts_file).context(ACCOUNTS)?;
    let Some(charts) = Charts::render()? else { return Ok(()) };
    let Some(env) = TestEnv::start()? else { return Ok(()) };
    let agent = run::use_members(&env, &charts).with_context(|| env.log())?;
    // Roles are removed when members leave, so they are read before that.
    let rbac = env.servers.iter().map(|(name, server)| Ok((*name, Rbac::read(&server.kubectl)?)));
    let rbac: BTreeMap<&str, Rbac> = rbac.collect::<Result<_>>()?;
    run::remove_members(&env, agent).with_context(|| env.log())?;
    let mut findings = Vec::new();
    for (name, server) in &env.servers {
        let accounts: Vec<&Account> = accounts_file.accounts.iter().filter(|account| account.at == *name).collect();
        findings.extend(check_accounts(&accounts, &accounts_file.others, server, &rbac[name])?);
    }
    ensure!(
        findings.is_empty(),
        "{} permissions are neither used nor explained:\n{}",
        findings.len(),
        findings.join("\n")
    );
    Ok(())
}

/// Evaluates the accounts at one API server, and bindings there that belong to no account.
fn check_accounts(
    accounts: &[&Account],
    others: &[OtherBindings],
    server: &Server,
    rbac: &Rbac,
) -> Result<Vec<String>> {
    let (records, empty) = (server.records()?, Record::default());
    let minor = server.minor_version()?;
    let mut ignored = server.default_bindings.clone();
    ignored.extend(others.iter().flat_map(|others| others.bindings.iter().cloned()));
    let (mut findings, mut known) = (Vec::new(), ignored.clone());
    for account in accounts {
        let (user, record) = find_record(account, &records).unwrap_or((&account.user, &empty));
        if record.uses.is_empty() {
            findings.push(format!("{} at {} sent no request", account.user, account.at));
        }
        let identity = Identity { user: user.to_owned(), groups: record.groups.clone() };
        let (grants, granting_bindings) = rbac.grants(&identity, &ignored);
        findings.extend(check_account(account, minor, &grants, &record.uses));
        write_report(account, record)?;
        known.extend(granting_bindings);
    }
    let unknown = rbac.bindings().into_keys().filter(|binding| !known.contains(binding));
    findings.extend(unknown.map(|binding| format!("{binding} has no subject in accounts.yaml")));
    Ok(findings)
}

/// The user of an account and the permissions that it used.
fn find_record<'a>(account: &Account, records: &'a Records) -> Option<(&'a str, &'a Record)> {
    let is_match = |user: &str| match account.user.strip_suffix('*') {
        Some(prefix) => user.starts_with(prefix),
        None => user == account.user,
    };
    records.iter().find(|(user, _)| is_match(user)).map(|(user, record)| (user.as_str(), record))
}

/// Writes the permissions that an account used to a file in the build folder, for review.
fn write_report(account: &Account, record: &Record) -> Result<()> {
    let folder = screenshot_folder()?.with_file_name("least-privilege");
    fs::create_dir_all(&folder)?;
    let used: BTreeSet<String> = record.uses.iter().map(ToString::to_string).collect();
    let lines: Vec<String> = used.into_iter().collect();
    let file = format!("{} {}", account.at, account.user.replace(['/', ':', '*'], "-"));
    Ok(fs::write(folder.join(file), lines.join("\n") + "\n")?)
}
