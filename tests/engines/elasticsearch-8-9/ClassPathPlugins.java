package org.elasticsearch.plugins;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.elasticsearch.Build;
import org.elasticsearch.action.admin.cluster.node.info.PluginsAndModules;
import org.elasticsearch.env.Environment;

/** Plugins of the class path instead of those in folders. Is in this package since {@code LoadedPlugin} is private to it. */
public final class ClassPathPlugins extends PluginsService {
    private final List<LoadedPlugin> plugins;

    public ClassPathPlugins(Environment environment, PluginsLoader loader, List<Class<? extends Plugin>> classes) {
        super(environment.settings(), environment.configDir(), loader);
        plugins = classes.stream().map(plugin -> load(environment, plugin)).toList();
    }

    private static LoadedPlugin load(Environment environment, Class<? extends Plugin> plugin) {
        Plugin instance = loadPlugin(plugin, environment.settings(), environment.configDir());
        return new LoadedPlugin(describe(plugin.getName()), instance, plugin.getClassLoader());
    }

    /** Parses a description: the constructors differ between versions of Elasticsearch. */
    private static PluginDescriptor describe(String name) {
        String properties = """
            name=%1$s
            description=%1$s
            version=NA
            elasticsearch.version=%2$s
            java.version=17
            classname=%1$s
            """.formatted(name, Build.current().version());
        try {
            return PluginDescriptor.readInternalDescriptorFromStream(
                new ByteArrayInputStream(properties.getBytes(StandardCharsets.UTF_8)));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Override
    protected List<LoadedPlugin> plugins() {
        return plugins;
    }

    @Override
    public PluginsAndModules info() {
        return new PluginsAndModules(List.of(), plugins.stream().map(LoadedPlugin::descriptor).toList());
    }
}
