/** Ends this process with the one that wanted it, so that a test that is killed leaves no server behind. */
final class Owner {
    private Owner() {}

    /** Reads the system property {@code owner}, a process id. Without one the server runs until it is stopped. */
    static void endWithIt() {
        Long owner = Long.getLong("owner");
        if (owner == null) {
            return;
        }
        ProcessHandle process = ProcessHandle.of(owner).orElse(null);
        if (process == null) {
            Runtime.getRuntime().halt(1);
        }
        process.onExit().thenRun(() -> Runtime.getRuntime().halt(1));
    }
}
