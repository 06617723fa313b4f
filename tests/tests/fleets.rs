//! A new fleet, a fleet of another owner's clusters, and one with an unreachable cluster. Each test mostly waits, so they run
//! concurrently in one program.

mod agent;
mod join;
mod quickstart;
