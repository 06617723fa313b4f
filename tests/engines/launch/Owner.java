/** Ends this process when its owner, the process of a test, ends, so that a killed test leaves no server behind. */
final class Owner {
    private Owner() {}

    /** Watches the process whose ID is the system property {@code owner}. Without the property, the server runs until it is stopped. */
    static void exitWithOwner() {
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
