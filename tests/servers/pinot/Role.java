import java.io.FileReader;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.pinot.spi.env.PinotConfiguration;
import org.apache.pinot.spi.plugin.PluginManager;
import org.apache.pinot.spi.services.ServiceStartable;

/** Runs one role of a Pinot cluster: java Role.java STARTER SETTINGS, a class and a file of properties. */
public class Role {
  public static void main(String[] arguments) throws Exception {
    Properties settings = new Properties();
    try (FileReader file = new FileReader(arguments[1])) {
      settings.load(file);
    }
    Map<String, Object> properties = new HashMap<>();
    settings.stringPropertyNames().forEach(name -> properties.put(name, settings.getProperty(name)));
    PluginManager.get().init();
    ServiceStartable role = (ServiceStartable) Class.forName(arguments[0]).getDeclaredConstructor().newInstance();
    try {
      role.init(new PinotConfiguration(properties));
      role.start();
    } catch (Exception error) {
      error.printStackTrace();
      System.exit(1); // threads that were started already would keep it alive
    }
    Runtime.getRuntime().addShutdownHook(new Thread(role::stop));
  }
}
