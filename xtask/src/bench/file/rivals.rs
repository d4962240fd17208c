use super::Contender;
use super::plan::Plan;

/// Rivals that could be had, and why others could not.
pub fn contenders(plan: &Plan) -> (Vec<Contender>, Vec<String>) {
    let mut absent = Vec::new();
    for (with, what, flag) in
        [(plan.with_lmcache, "LMCache", "--with-lmcache"), (plan.with_nixl, "NIXL", "--with-nixl")]
    {
        if !with {
            absent.push(format!("{what} (ask for it with {flag})"));
        }
    }
    (Vec::new(), absent)
}
