//! A newcomer's fleet, one of clusters that somebody else runs, and one with a cluster that nobody can dial. Each mostly waits; as
//! tests of one program they wait beside each other.

mod agent;
mod join;
mod quickstart;
